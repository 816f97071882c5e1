"""How well a statement about a chip is known, and how many statements of a report are known so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from joymigrate.language import tell


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


GRADES = tuple(grade.value for grade in Grade)


def count_grades(grades: Iterable[str]) -> dict[str, int]:
    """How many statements have each grade, the weakest first; a grade without any counts 0."""
    known = list(grades)
    return {grade: known.count(grade) for grade in GRADES}


def reaches(grade: str, wanted: str) -> bool:
    """Whether a statement is known at least as well as `wanted`."""
    return GRADES.index(grade) >= GRADES.index(wanted)


def weakest(grades: Iterable[str]) -> str:
    """The lowest of some grades; `documented` where there is none."""
    return min(grades, key=GRADES.index, default=GRADES[0])


def count_weaker(counts: Mapping[str, int], wanted: str) -> int:
    """How many of the counted statements are not known as well as `wanted`."""
    return sum(number for grade, number in counts.items() if not reaches(grade, wanted))


def grade_line(counts: Mapping[str, int], say: Callable[..., str] = tell) -> str:
    """The counts as a sentence, in the language that is spoken."""
    return say(
        "Statements about the chip: {documented} documented, {rehearsed} rehearsed, "
        "{measured} measured.",
        **counts,
    )


def weaker_line(counts: Mapping[str, int], wanted: str) -> str | None:
    """Why a report does not reach `wanted`; None where it does."""
    weaker = count_weaker(counts, wanted)
    if not weaker:
        return None
    return tell(
        "below --require-grade {wanted}: {weaker} of {number} statements are weaker",
        wanted=wanted,
        weaker=weaker,
        number=sum(counts.values()),
    )
