"""Packages that are known not to go together on a chip: the rows of its `stops.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from joymigrate.language import Text
from joymigrate.schema import read_yaml

FILE = "stops.yaml"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One row: `packages` are distributions with their versions, `symptom` a pattern of
    `Type: message`, `frame` part of a file that the traceback passes. `says` is the message as
    it was recorded, `source` where; `edits` what to write in the program instead of what. Without
    a symptom the versions alone tell; `sure` where they always fail. `cause` is one of
    `doctor.yaml`; a row without one is a cause of its own."""

    name: str
    packages: Mapping[str, str]
    symptom: str
    why: str
    do: str
    source: str
    says: str
    frame: str = ""
    edits: Mapping[str, str] = field(default_factory=dict)
    cause: str = ""
    sure: bool = False

    def explains(self, said: str, files: Sequence[str], versions: Mapping[str, str]) -> bool:
        """Whether `Type: message` is this row's, with the files that the traceback passes and the
        versions that are installed."""
        if not self.symptom or not re.search(self.symptom, said, re.DOTALL):
            return False
        if self.frame and not any(self.frame in file for file in files):
            return False
        return self.holds(versions)

    def holds(self, versions: Mapping[str, str]) -> bool:
        """Whether all packages are there in these versions."""
        return all(fits(versions.get(name), wanted) for name, wanted in self.packages.items())

    def may_explain(self, said: str, versions: Mapping[str, str | None]) -> bool:
        """The same of a pasted error, whose machine is known in part: a package that nobody looked
        for may be there."""
        known = {name: v for name, v in self.packages.items() if name in versions}
        return (
            bool(self.symptom)
            and re.search(self.symptom, said, re.DOTALL) is not None
            and all(fits(versions[name], wanted) for name, wanted in known.items())
        )

    def named(self, versions: Mapping[str, str | None]) -> str:
        """The packages with the versions that are installed: `accelerate 1.2, trl 0.9`."""
        return ", ".join(f"{name} {versions.get(name) or ''}".strip() for name in self.packages)


def fits(version: str | None, wanted: str) -> bool:
    """Whether an installed version is in a range; a package that is not there is in none."""
    if version is None:
        return False
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


@cache
def read_incompatible(folder: Path) -> tuple[Incompatibility, ...]:
    """The rows of a chip's folder; none where it has no such file."""
    path = folder / FILE
    if not path.is_file():
        return ()
    return tuple(read_row(name, row) for name, row in read_yaml(path)["rows"].items())


def read_row(name: str, row: Mapping[str, Any]) -> Incompatibility:
    """One row of the file."""
    return Incompatibility(
        name=name,
        packages=row["packages"],
        symptom=row.get("symptom", ""),
        why=Text.of(row["why"]),
        do=Text.of(row["action"]),
        source=row["source"],
        says=row.get("says", ""),
        frame=row.get("frame", ""),
        edits=row.get("edits", {}),
        cause=row.get("cause", ""),
        sure=row.get("sure", False),
    )
