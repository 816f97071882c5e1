"""A stop in a few lines, the same in every report: what stopped, whose it is, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.language import Text

WHOSE = {
    "program": "the program's own",
    "environment": "the environment's",
    "chip": "the chip's",
    "package": "a package's",
    "rewrite": "our rewriting's",
    "simulation": "the simulation's",
    "unknown": "not known",
}
MOST_BYTES = 2000  # of a stop in a text


def sentence(stop: Mapping[str, Any]) -> Text:
    """What stopped, and where."""
    if not stop["line"]:
        return Text("stopped: {message}", message=stop["message"])
    return Text("stopped at {line}: {message}", line=stop["line"], message=stop["message"])


def lines(stop: Mapping[str, Any], log: str = "") -> list[Text]:
    """A stop as lines of at most 2 kB in all; `log` names the file that holds the rest."""
    told = [
        sentence(stop),
        Text("  whose: {whose} ({how})", whose=WHOSE[stop["whose"]], how=stop["how_known"]),
        Text("  next: {next}", next=stop["next"]),
    ]
    room = MOST_BYTES - sum(len(one.encode()) + 1 for one in told)
    for frame in reversed(stop["frames"]):
        room -= len(frame.encode()) + 5
        if room < 200:
            break
        told.insert(3, Text.of(f"    {frame}"))
    if log:
        told.append(Text("  all of it: {log}", log=log))
    return told
