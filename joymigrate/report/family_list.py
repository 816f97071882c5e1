"""`serve models`: families that the engine serves, and those it refuses, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from joymigrate.report.fields import fields
from joymigrate.run.serve.engine.families import EngineFamily

SCHEMA = "joymigrate.served/1"


def as_text(found: Sequence[EngineFamily], versions: str) -> str:
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


def as_json(found: Sequence[EngineFamily], versions: str) -> str:
    """The same for programs."""
    models = [
        fields(one, "family=name status") | {"path": one.path or None, "reason": one.reason or None}
        for one in found
    ]
    document = {"schema": SCHEMA, "transformers": versions, "models": models}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
