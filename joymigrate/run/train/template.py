"""Writes a commented job file from the job's own fields: what `train init` gives."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from joymigrate.run.train.job import SCHEMA, Job

HIDDEN = ("folder",)
WIDTH = 34  # column where comments start
STARTS: dict[str, Any] = {
    "model": {"path": "path/to/model"},
    "data": {"train": "data.jsonl"},
    "task": "sft",
    "optimiser": {"lr": 1e-4},
    "schedule": {"name": "cosine", "warmup": 10},
}


def render(values: dict[str, Any] | None = None) -> str:
    """A job file: `values` are written as keys, everything else as a comment with its default."""
    given = {**STARTS, "steps": 100, "batch": {"size": 8}, **(values or {})}
    lines = [
        "# A joymigrate training job. Lines behind # show defaults.",
        f"schema: {SCHEMA}",
        "",
    ]
    for item in dataclasses.fields(Job):
        if item.name not in HIDDEN:
            lines += block(item, given)
    return "\n".join(lines) + "\n"


def block(item: dataclasses.Field[Any], given: dict[str, Any]) -> list[str]:
    """One key of the job, with its own keys below it."""
    nested = nested_default(item)
    value = given.get(item.name)
    if nested is None or isinstance(value, str):
        on = item.name in given and value is not None
        return [line("", item, value if on else plain_default(item), on)]
    inner = value if isinstance(value, dict) else {}
    on = bool(inner)
    lines = [line("", item, None, on, head=True)]
    for part in dataclasses.fields(nested):
        written = part.name in inner
        shown = inner[part.name] if written else plain_default(part)
        lines.append(line("  ", part, shown, on and written))
    return [*lines, ""]


def nested_default(item: dataclasses.Field[Any]) -> Any:
    """The dataclass of a nested field, or None."""
    from joymigrate.run.train import job

    kind = getattr(job, str(item.type), None)
    return kind if dataclasses.is_dataclass(kind) else None


def plain_default(item: dataclasses.Field[Any]) -> Any:
    """The default of a field, as YAML shows it."""
    if item.default is not dataclasses.MISSING:
        return list(item.default) if isinstance(item.default, tuple) else item.default
    if item.default_factory is not dataclasses.MISSING:
        made = item.default_factory()
        return made if isinstance(made, dict) else None
    return None


def line(
    indent: str, item: dataclasses.Field[Any], value: Any, on: bool, *, head: bool = False
) -> str:
    """`key: value   # help`, commented out unless `on`."""
    text = f"{item.name}:" if head else f"{item.name}: {yaml_value(value)}"
    start = f"{indent}{text}" if on else f"{'# ' if not indent else '  # '}{text}"
    help = item.metadata.get("help") or ""
    return f"{start:<{WIDTH}} # {help}".rstrip() if help else start


def yaml_value(value: Any) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, float):
        return f"{value:g}" if value >= 1e-3 or value == 0 else f"{value:.1e}"
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value)
