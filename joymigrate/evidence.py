"""How well a statement about a chip is known."""

from __future__ import annotations

from enum import Enum


class Grade(str, Enum):
    """`documented` (source, date) < `rehearsed` (package version) < `measured` (chip, date).

    A rehearsed result never opens the gate of a real chip.
    """

    DOCUMENTED = "documented"
    REHEARSED = "rehearsed"
    MEASURED = "measured"

    @property
    def opens_gate(self) -> bool:
        """Whether a verdict of this grade lets production use a real chip."""
        return self is Grade.MEASURED
