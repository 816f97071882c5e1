"""Advice on one name of the origin's vocabulary, and reading it from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.model import Tier
from joymigrate.schema import DocumentSource, read, setting


@dataclass(frozen=True, slots=True)
class NameAdvice:
    """What to do about one name of the origin: what takes its place, how safely, and why.

    `to` is None where nothing takes its place, and equals `name` where the name stays as it is.
    `also` lists further names to write with the first one.
    """

    SHORT: ClassVar[str] = "to"

    name: str = setting("", hidden=True)
    to: str | None = None
    tier: Tier = Tier.REPORT
    note: str = ""
    source: str = ""
    date: str = ""
    also: tuple[str, ...] = ()
    one_way: bool = False  # the way back would not restore the original

    @property
    def keeps(self) -> bool:
        """Whether the name stays as it is on the chip."""
        return self.to == self.name


@dataclass(frozen=True, slots=True)
class PackageAdvice:
    """What to do about a third-party distribution in requirements, images and environments.

    `versions` is the range of `to` that the statement holds for; `aarch64` says whether a wheel
    for 64-bit Arm servers exists (None: unknown). `releases` are all releases of `to` where each
    goes with the same version of the distribution itself. `cpu_builds` is the range of `to` whose
    x86 wheels ask for the build `+cpu` of the distribution.
    """

    name: str = setting("", hidden=True)
    to: str | None = None
    versions: str = ""
    releases: tuple[str, ...] = ()
    cpu_builds: str = ""
    covers: str = ""
    aarch64: bool | None = None
    tier: Tier = Tier.REPORT
    note: str = ""
    source: str = ""
    date: str = ""


def normalise_name(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return distribution.lower().replace("_", "-").replace(".", "-")


# Canonical names of the variables that every chip has under some name.
CANONICAL_VARIABLES = {
    "visible_devices": "CUDA_VISIBLE_DEVICES",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING",
    "allocator": "PYTORCH_CUDA_ALLOC_CONF",
}


def environment(raw: Mapping[str, Any], path: Path) -> dict[str, NameAdvice]:
    """Variables by canonical name from the roles, `map`, `keep` and `report` of chip.yaml."""
    here = ("environment",)
    found: dict[str, NameAdvice] = {}
    for role, value in raw.items():
        if role in ("map", "keep", "report"):
            continue
        canonical = CANONICAL_VARIABLES.get(role)
        if canonical is None:
            raise JoyError(
                f"unknown key '{role}'.{did_you_mean(str(role), CANONICAL_VARIABLES)}",
                where=f"{path} environment",
                help=f"known keys: {', '.join(CANONICAL_VARIABLES)}, map, keep, report",
            )
        found[canonical] = read_advice(canonical, value, Tier.SAFE, path, here)
    for part in ("map", "keep", "report"):
        if not isinstance(raw.get(part) or {}, dict):
            raise JoyError(
                f"expected a mapping, got {raw[part]!r}", where=f"{path} environment.{part}"
            )
    for name, value in (raw.get("map") or {}).items():
        found[name] = read_advice(name, value, Tier.UNSAFE, path, (*here, "map"))
    for name, value in (raw.get("keep") or {}).items():
        item = value if isinstance(value, dict) else {"note": value}
        kept = {"to": name, **item}
        found[name] = read_advice(name, kept, Tier.REPORT, path, (*here, "keep"))
    for name, value in (raw.get("report") or {}).items():
        item = value if isinstance(value, dict) else {"note": value}
        found[name] = read_advice(name, item, Tier.REPORT, path, (*here, "report"))
    return found


def read_advice(
    name: Any, value: Any, tier: Tier, path: Path, keys: tuple[str, ...] = ()
) -> NameAdvice:
    """One item at `keys` of a file: a plain string is `to`; a mapping has the fields of an advice.

    Without a tier of its own it has `tier`; without a replacement there is nothing to write.
    """
    keys = (*keys, str(name))
    if not isinstance(name, str):
        text = f"a name must be text, got {name!r}"
        raise JoyError(text, where=DocumentSource(str(path)).at(keys), help="quote it")
    advice = replace(read(NameAdvice, value, str(path), keys=keys), name=name)
    if isinstance(value, Mapping) and value.get("tier"):
        return advice
    return replace(advice, tier=tier if advice.to else Tier.REPORT)


def read_package(name: str, value: Any, path: Path) -> PackageAdvice:
    """One item of packages.yaml."""
    found = read(PackageAdvice, value, str(path), keys=("packages", str(name)))
    return replace(found, name=name)
