"""What is said of a kernel: one note with a level, a line, what to do, and who says so."""

from __future__ import annotations

from dataclasses import dataclass

WORKS, CHANGES, UNKNOWN, FAILS = "works", "needs changes", "not judged", "does not work"
RANK = {"note": 0, "changes": 1, "unknown": 2, "fails": 3}


@dataclass(frozen=True, slots=True)
class Note:
    """One thing about a kernel: `note` (nothing to do), `changes`, `unknown` or `fails`."""

    level: str
    line: int
    message: str
    help: str = ""
    source: str = ""
