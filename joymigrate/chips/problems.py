"""One mistake in a chip folder, and how checks say where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.chips.chip import Chip
from joymigrate.errors import JoyError, did_you_mean


@dataclass(frozen=True, slots=True)
class ChipProblem:
    """One mistake: the file, the key inside it (empty for the whole file), and what is wrong."""

    path: str
    key: str
    what: str
    line: int | None = None

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return ": ".join(part for part in (place, self.key, self.what) if part)


def problem_of(error: JoyError, path: Path) -> ChipProblem:
    """A `JoyError` as a problem; its `where` is `FILE[:LINE[:COLUMN]][ KEY]`."""
    place, _, key = (error.where or str(path)).partition(" ")
    file, line = re.fullmatch(r"(.*?)(?::(\d+))?(?::\d+)?", place, re.DOTALL).groups()  # type: ignore[union-attr]
    return ChipProblem(file, key, error.what, int(line) if line else None)


def at(chip: Chip, key: str, what: str, file: str = "chip.yaml") -> ChipProblem:
    """A problem in a file of the chip."""
    return ChipProblem(str(chip.folder / file), key, what)


def unknown_keys(
    chip: Chip, section: str, raw: Mapping[str, Any], known: tuple[str, ...]
) -> Iterator[ChipProblem]:
    """Keys of one section that nobody reads."""
    for key in raw:
        if key not in known:
            yield at(chip, f"{section}.{key}", f"unknown key.{did_you_mean(str(key), known)}")
