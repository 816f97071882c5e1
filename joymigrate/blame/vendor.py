"""What tells a chip's own stops: its vendor's words and known incompatibilities (`stops.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from joymigrate.blame.exceptions import Raised
from joymigrate.chips import get
from joymigrate.chips.advice import NameAdvice
from joymigrate.language import Text
from joymigrate.schema import read_yaml

FILE = "stops.yaml"
NEVER = r"(?!)"  # matches nothing


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One row: `packages` are distributions with their versions, `symptom` a pattern of
    `Type: message`, `frame` part of a file that the traceback passes. `says` is the message as
    it was recorded, `source` where; `edits` what to write in the program instead of what."""

    name: str
    packages: Mapping[str, str]
    symptom: str
    why: str
    do: str
    source: str
    says: str
    frame: str = ""
    edits: Mapping[str, str] = field(default_factory=dict)

    def explains(self, one: Raised, versions: Mapping[str, str]) -> bool:
        """Whether an exception is this row's, with the versions that are installed."""
        if not re.search(self.symptom, one.said, re.DOTALL):
            return False
        if self.frame and not any(self.frame in frame.file for frame in one.frames):
            return False
        return all(fits(versions.get(name), wanted) for name, wanted in self.packages.items())

    def named(self, versions: Mapping[str, str]) -> str:
        """The packages with the versions that are installed: `accelerate 1.2, trl 0.9`."""
        return ", ".join(f"{name} {versions.get(name, '')}".strip() for name in self.packages)


def fits(version: str | None, wanted: str) -> bool:
    """Whether an installed version is in a range; a package that is not there is in none."""
    if version is None:
        return False
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


@dataclass(frozen=True, slots=True)
class Vendor:
    """A chip's `package` (the module), patterns of what it and the runtime say, and what is known
    of packages beside it; `imports` says what stands in for packages of the origin. Without a
    `stops.yaml` nothing is said of the vendor's words."""

    package: str = ""
    memory: str = NEVER
    runtime_code: str = NEVER
    package_code: str = NEVER
    missing_symbol: str = NEVER
    rows: tuple[Incompatibility, ...] = ()
    imports: Mapping[str, NameAdvice] = field(default_factory=dict)


@cache
def load(chip: str) -> Vendor:
    """What is known of a chip's vendor."""
    found = get(chip)
    path = found.folder / FILE
    if not path.is_file():
        return Vendor(found.package or "", imports=found.imports())
    raw = read_yaml(path)
    rows = tuple(read_row(name, row) for name, row in raw["rows"].items())
    return Vendor(found.package or "", **raw["words"], rows=rows, imports=found.imports())


def read_row(name: str, row: Mapping[str, Any]) -> Incompatibility:
    """One row of the file."""
    return Incompatibility(
        name=name,
        packages=row["packages"],
        symptom=row["symptom"],
        why=Text.of(row["why"]),
        do=Text.of(row["action"]),
        source=row["source"],
        says=row["says"],
        frame=row.get("frame", ""),
        edits=row.get("edits", {}),
    )
