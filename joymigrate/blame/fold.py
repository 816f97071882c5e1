"""A traceback in a few lines: the program's frames whole, those of packages as a count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from joymigrate.blame.exceptions import Frame, Raised
from joymigrate.blame.program import Program, is_ours, package_of

MOST_BYTES = 1200  # of a stop's 2 kB; its sentences take the rest
MOST_LINE = 120


def fold(chain: Sequence[Raised], program: Program) -> list[str]:
    """The frames of the exception that ended the program, the innermost last."""
    if not chain:
        return []
    lines = list(lines_of(chain[0].frames, program))
    while len("\n".join(lines).encode()) > MOST_BYTES and len(lines) > 2:
        middle = len(lines) // 2
        lines[middle - 1 : middle + 1] = ["…"]
    return lines


def lines_of(frames: Sequence[Frame], program: Program) -> Iterator[str]:
    """A line for every frame of the program's, one for each run of others."""
    for ours, run in groupby(frames, key=lambda frame: program.holds(frame.file)):
        found = list(run)
        if not ours:
            theirs = [one for one in found if not is_ours(one.file)]
            if not theirs:
                continue
            names = dict.fromkeys(package_of(one.file) or "python" for one in theirs)
            last = theirs[-1]
            place = last.file.partition("-packages/")[2] or last.file
            yield f"… {len(theirs)} × {', '.join(names)}; {place}:{last.line} {last.text}"[
                :MOST_LINE
            ]
            continue
        for same, again in groupby(found, key=lambda one: (one.file, one.line, one.text)):
            times = len(list(again))
            line = f"{program.name(same[0])}:{same[1]} {same[2]}"[:MOST_LINE].rstrip()
            yield f"{line}  × {times}" if times > 1 else line
