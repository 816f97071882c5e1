"""The port check of Triton kernels as text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from joymigrate.profile.port import Checked


def as_json(found: Sequence[Checked], chip: str, known: dict[str, Any]) -> str:
    """`joymigrate.port/1`."""
    made = {
        "schema": "joymigrate.port/1",
        "chip": chip,
        "grade": "documented",
        "source": known["source"],
        "kernels": [asdict(one) for one in found],
        "summary": dict(Counter(one.verdict for one in found)),
    }
    return json.dumps(made, indent=2) + "\n"


def as_text(found: Sequence[Checked], chip: str, known: dict[str, Any]) -> str:
    """One line per kernel, its notes below, and a summary with the source."""
    lines = []
    for one in found:
        lines.append(f"{one.path}:{one.line}: {one.kernel}: {one.verdict}")
        for note in one.notes:
            lines.append(f"  {note.level:<8} line {note.line}: {note.message}")
            if note.help:
                lines.append(f"           {note.help}")
    counted = Counter(one.verdict for one in found)
    said = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))
    lines.append(f"{len(found)} Triton kernels on {chip}: {said or 'none found'}.")
    lines.append(f"Documented by {known['source']}; nothing was compiled or run.")
    return "\n".join(lines) + "\n"
