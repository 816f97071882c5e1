"""The user's mistakes as one exception type, and the exit codes of every command."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes; the same meaning in every command."""

    OK = 0
    FOUND = 1  # findings, would change, verdict failed, below a threshold
    ERROR = 2  # usage, configuration, or our own error
    INCONCLUSIVE = 3  # only `verify`
    INTERRUPTED = 130


class JoyError(Exception):
    """What went wrong, with the value; where; and what to do about it.

    Raised for mistakes that the user can mend. Anything else that escapes a command is our bug
    and is reported as one.
    """

    def __init__(self, what: str, *, where: str | None = None, help: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.help = help

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest of `known`, or an empty string when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
