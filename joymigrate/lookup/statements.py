"""The nouns of an answer: a name of one kind, and the statements about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that is known about a name, with its source and how well it is known.

    `becomes` is what is written in its place; None where nothing is. `since` is the first release
    of what `becomes` needs, as far as it was read. Without `styles` it holds for all of them.
    """

    chips: tuple[str, ...]
    text: str
    styles: tuple[str, ...] = ()
    becomes: str | None = None
    since: str | None = None
    tier: str | None = None
    rule: str | None = None
    source: str = ""
    grade: str = "documented"


@dataclass(frozen=True, slots=True)
class Described:
    """A name of one kind. `covers` says what the statements do not tell."""

    name: str
    kind: str  # rule, api, operator, package, code, variable or tool
    statements: tuple[Statement, ...]
    covers: str = ""


def join(found: Iterable[Statement]) -> tuple[Statement, ...]:
    """Statements that differ in nothing but the chip, or the style, as one, in their order."""
    by_chip: dict[Statement, list[str]] = {}
    for one in found:
        by_chip.setdefault(replace(one, chips=()), []).extend(one.chips)
    by_style: dict[Statement, list[str]] = {}
    for one, names in by_chip.items():
        whole = replace(one, chips=tuple(names))
        by_style.setdefault(replace(whole, styles=()), []).extend(whole.styles)
    return tuple(replace(one, styles=tuple(names)) for one, names in by_style.items())
