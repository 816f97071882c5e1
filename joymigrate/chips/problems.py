"""One mistake in a chip folder, and how checks say where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.chips.chip import Chip
from joymigrate.errors import JoyError, did_you_mean


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the file, the key inside it (empty for the whole file), and what is wrong."""

    path: str
    key: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.key, self.what) if part)


def problem_of(error: JoyError, path: Path) -> Problem:
    """A `JoyError` as a problem; its `where` is `FILE[ KEY]`."""
    file, _, key = (error.where or str(path)).partition(" ")
    return Problem(file, key, error.what)


def at(chip: Chip, key: str, what: str, file: str = "chip.yaml") -> Problem:
    """A problem in a file of the chip."""
    return Problem(str(chip.folder / file), key, what)


def unknown_keys(
    chip: Chip, section: str, raw: Mapping[str, Any], known: tuple[str, ...]
) -> Iterator[Problem]:
    """Keys of one section that nobody reads."""
    for key in raw:
        if key not in known:
            yield at(chip, f"{section}.{key}", f"unknown key.{did_you_mean(str(key), known)}")
