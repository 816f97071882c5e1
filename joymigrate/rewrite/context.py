"""What every part of one scan knows: the two chips, the style, and the rules between them."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from joymigrate.chips import Chip
from joymigrate.model import Rule, Style
from joymigrate.rewrite import rules

T = TypeVar("T")
MOVES = 16  # sets of rules whose tables are kept: each codemod of a project makes another set


@dataclass(frozen=True, slots=True)
class Floor:
    """The oldest torch that must run what is written, and who says so (`requirements.txt:3`)."""

    version: str
    place: str


@dataclass(frozen=True, slots=True)
class Context:
    """A move from `origin` to `chip` in `style`; `version` is that of the chip's package."""

    chip: Chip
    origin: Chip
    style: Style
    rules: Mapping[str, Rule]
    version: str | None = None
    codemods: tuple[type[Any], ...] = ()  # subclasses of `codemod.Codemod`
    # Options of the project's programs that hold a device or a backend: name and kind.
    options: tuple[tuple[str, str], ...] = ()
    # Keys of the project's configuration files that hold the origin's device.
    configured: frozenset[str] = frozenset()
    floors: Mapping[str, Floor] = field(default_factory=dict)  # of torch, by who says so: a folder

    @classmethod
    def between(
        cls,
        chip: Chip,
        origin: Chip,
        style: Style = Style.DIRECT,
        version: str | None = None,
        codemods: tuple[type[Any], ...] = (),
    ) -> Context:
        """The context of a move, with its rules loaded."""
        known = rules.load(chip, origin)
        if codemods:
            known = {**known, **{one.RULE: one.rule() for one in codemods}}
        return cls(chip, origin, style, known, version, codemods)


def once_per_rules(make: Callable[[Context], T]) -> Callable[[Context], T]:
    """`make`, run once for each set of rules.

    What it made is kept with the set itself: an `id` alone would name another set as soon as the
    first one is gone, and a scan with that one's words would find nothing.
    """
    kept: OrderedDict[int, tuple[Mapping[str, Rule], T]] = OrderedDict()

    @functools.wraps(make)
    def made(context: Context) -> T:
        known = kept.get(id(context.rules))
        if known is None:
            known = kept[id(context.rules)] = (context.rules, make(context))
            if len(kept) > MOVES:
                kept.popitem(last=False)
        return known[1]

    return made
