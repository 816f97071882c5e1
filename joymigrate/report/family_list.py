"""`serve models`: families that the engine serves, and those it refuses, as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.report.fields import fields
from joymigrate.run.serve.engine.families import EngineFamily

SCHEMA = "joymigrate.served/1"


def text(found: Sequence[EngineFamily], versions: str) -> str:
    """One line for each family, and a summary."""
    width = max((len(family.name) for family in found), default=0)
    lines = []
    for family in found:
        what = family.path if family.status == "pass" else f"{family.status}: {family.reason}"
        lines.append(f"{family.name:<{width}}  {what}")
    passed = sum(family.status == "pass" for family in found)
    lines.append(
        f"{passed} families continue as transformers {versions} does (tiny random models, "
        f"float32, on the CPU; on a chip none was run), {len(found) - passed} do not."
    )
    return "\n".join(lines) + "\n"


def document(found: Sequence[EngineFamily], versions: str) -> dict[str, Any]:
    """`joymigrate.served/1`."""
    models = [
        fields(one, "family=name status") | {"path": one.path or None, "reason": one.reason or None}
        for one in found
    ]
    return {"schema": SCHEMA, "transformers": versions, "models": models}
