"""What a chip says otherwise than the common rules: `overrides.yaml` in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from joymigrate.chips.chip import Chip
from joymigrate.model import Tier
from joymigrate.schema import DocumentSource, document, load_file, mistakes, read, setting

FILE = "overrides.yaml"


@dataclass(frozen=True, slots=True)
class Override:
    """What is changed in one rule; what is not named stays."""

    tier: Tier | None = setting(None, "how far its edits are trusted on this chip")
    title: str | None = setting(None, "what it is about, in a few words")
    message: str | None = setting(None, "what a finding says")
    why: str | None = setting(None, "the reason behind it")
    weight: float | None = setting(None, "its part in the effort", least=0)
    reference: str | None = setting(None, "where the statement comes from")

    def changes(self) -> dict[str, Any]:
        """The fields of a rule that are replaced."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in given.items() if value is not None}


@document(
    "chip-overrides", "Changes to the common rules on a chip: `overrides.yaml` in its folder."
)
@dataclass(frozen=True, slots=True)
class Overrides:
    """Rule ids with what is changed in each."""

    REST: ClassVar[str] = "rules"

    rules: Mapping[str, Override] = field(default_factory=dict)


def overrides(chip: Chip) -> Mapping[str, Override]:
    """The chip's changes by rule id; none without the file. A mistake raises `JoyError`."""
    raw, source = load(chip)
    return read(Overrides, raw, source).rules


def problems(chip: Chip) -> list[Any]:
    """Every mistake of the chip's file, as `JoyError`."""
    return mistakes(Overrides, *load(chip))


def load(chip: Chip) -> tuple[Any, DocumentSource]:
    """The file as plain data; an empty mapping where there is none."""
    path = chip.folder / FILE
    raw, source = load_file(path) if path.is_file() else (None, DocumentSource(str(path)))
    return raw or {}, source
