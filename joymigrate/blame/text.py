"""A stop in a few lines, the same in every report: what stopped, whose it is, what to do.

Also the lines of a program whose words for a device only showed while it ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.language import Text, tell

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
MOST_UNREAD = 10  # lines that are told


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


def unread_lines(words: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the origin's words reached torch though the program was rewritten, on a terminal."""
    if not words:
        return []
    calls, places = sum(row["calls"] for row in words), len({row["line"] for row in words})
    said = "only seen while running: {calls} call{calls_s} in {places} line{places_s} gave torch "
    said += "the origin's words, and were translated there"
    lines = [tell(said, calls=calls, places=places)]
    lines += [f"  {row['line']}: {row['what']}" for row in words[:MOST_UNREAD]]
    if len(words) > MOST_UNREAD:
        lines.append("  " + tell("… and {number} more", number=len(words) - MOST_UNREAD))
    return lines
