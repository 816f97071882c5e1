"""What every part of one scan knows: the two chips, the style, and the rules between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.chips import Chip
from joymigrate.model import Rule, Style
from joymigrate.rewrite import rules


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
