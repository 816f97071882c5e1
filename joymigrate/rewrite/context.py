"""What every part of one scan knows: the two chips, the style, and the rules between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    @classmethod
    def between(
        cls, chip: Chip, origin: Chip, style: Style = Style.DIRECT, version: str | None = None
    ) -> Context:
        """The context of a move, with its rules loaded."""
        return cls(chip, origin, style, rules.load(chip, origin), version)
