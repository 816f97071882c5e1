"""Drafts by prompt lookup: what followed the newest words when they stood in the text before.

The model checks a whole draft in one step. Every token is still the one that the sampler chooses
from the scores behind the true text, with the draw of its own position, so that a draft changes
when tokens come, and never which. (A. Saxena, Prompt Lookup Decoding, 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol

from joymigrate.run.serve.engine.sequence import Sequence

LONGEST, SHORTEST = 3, 2  # tokens that must stand there again; long ones are tried first


class Lookup:
    """Finds drafts in one text, which only grows. Takes time for new tokens alone."""

    def __init__(self) -> None:
        self.behind: dict[tuple[int, ...], int] = {}  # where the text went on behind these tokens
        self.read = SHORTEST

    def draft(self, ids: Many[int], most: int) -> tuple[int, ...]:
        """At most `most` tokens that may follow; none where nothing like the end stood before."""
        for end in range(self.read, len(ids)):
            for count in range(SHORTEST, min(LONGEST, end) + 1):
                self.behind[tuple(ids[end - count : end])] = end
        self.read = max(self.read, len(ids))
        for count in range(min(LONGEST, len(ids)), SHORTEST - 1, -1):
            place = self.behind.get(tuple(ids[-count:]))
            if place is not None:
                return tuple(ids[place : place + max(0, most)])
        return ()


class Drafter(Protocol):
    """Who says what may follow texts."""

    def keep(self, running: Many[Sequence]) -> None:
        """Forget the texts that run no more."""

    def draft(self, wanted: Many[tuple[Sequence, int]]) -> list[tuple[int, ...]]:
        """For each text at most so many tokens that may follow it; it changes no text."""
        ...


class Lookups:
    """Drafts by prompt lookup for many texts."""

    def __init__(self) -> None:
        self.lookups: dict[Sequence, Lookup] = {}

    def keep(self, running: Many[Sequence]) -> None:
        """Forget the texts that run no more."""
        for gone in self.lookups.keys() - set(running):
            del self.lookups[gone]

    def draft(self, wanted: Many[tuple[Sequence, int]]) -> list[tuple[int, ...]]:
        """For each text at most so many tokens that stood behind the same words before."""
        return [
            self.lookups.setdefault(text, Lookup()).draft(text.ids, most) for text, most in wanted
        ]
