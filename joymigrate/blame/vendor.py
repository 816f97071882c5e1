"""What tells a chip's own stops: its vendor's words and known incompatibilities (`stops.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from joymigrate.chips import get
from joymigrate.chips.advice import NameAdvice
from joymigrate.chips.incompatible import FILE, Incompatibility, read_incompatible
from joymigrate.chips.names import NameList
from joymigrate.schema import read_yaml

NEVER = r"(?!)"  # matches nothing


@dataclass(frozen=True, slots=True)
class Vendor:
    """A chip's `package` (the module), patterns of what it and the runtime say, and what is known
    of packages beside it; `imports` says what stands in for packages of the origin, `names` what
    the package has in which release. Without a
    `stops.yaml` nothing is said of the vendor's words."""

    package: str = ""
    memory: str = NEVER
    runtime_code: str = NEVER
    package_code: str = NEVER
    missing_symbol: str = NEVER
    rows: tuple[Incompatibility, ...] = ()
    imports: Mapping[str, NameAdvice] = field(default_factory=dict)
    names: NameList | None = None


@cache
def load(chip: str) -> Vendor:
    """What is known of a chip's vendor."""
    found = get(chip)
    path = found.folder / FILE
    if not path.is_file():
        return Vendor(found.package or "", imports=found.imports(), names=found.name_list())
    raw = read_yaml(path)
    rows = read_incompatible(found.folder)
    return Vendor(
        found.package or "", **raw["words"], rows=rows, imports=found.imports(),
        names=found.name_list(),
    )  # fmt: skip
