"""What a run by stand-ins is, and what was seen in it (`joymigrate.standin/1`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.language import Text, tell
from joymigrate.run.door.notes import read_notes
from joymigrate.run.door.settings import DoorSettings

SCHEMA = "joymigrate.standin/1"
WHAT = "computed on this CPU, float32 matmuls exact, no TF32; the GPU's own rounding is not in it"
MOST = 5  # lines of a kind in text


def summarise(
    settings: DoorSettings, code: int, command: list[str], *, loaded: bool
) -> dict[str, Any]:
    """The report of a run that ended with `code`. `loaded`: a Python of it had the stand-ins."""
    seen = read_notes(Path(settings.notes))
    return {
        "schema": SCHEMA,
        "what": Text.of(WHAT),
        "loaded": loaded,
        "reference": "cpu",
        "command": command,
        "exit_code": code,
        "cards": settings.cards,
        "model": settings.model,
        "refused": seen["refused"],
        "other": seen["other"],
        "words": seen["words"],
    }


def as_text(found: Mapping[str, Any]) -> str:
    """The report on a terminal."""
    calls = sum(row["calls"] for row in found["words"])
    lines = [tell("baseline: {what}", what=tell(found["what"]))]
    if not found["loaded"]:
        lines = [tell("baseline: no Python of this command had the stand-ins: this is no baseline")]
    lines.append(
        tell(
            "  the program ended with exit code {code}; {calls} calls named a card",
            code=found["exit_code"],
            calls=calls,
        )
    )
    for how, count in list(found["other"].items())[:MOST]:
        lines.append(tell("  not as asked: {how} ({count} times)", how=how, count=count))
    for one in found["refused"][:MOST]:
        text = "{line}: {what} has no stand-in here: {reason}"
        lines.append("  " + tell(text, line=one["line"], what=one["what"], reason=one["reason"]))
    return "\n".join(lines)
