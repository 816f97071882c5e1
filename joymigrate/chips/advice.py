"""Advice on one name of the origin's vocabulary, and reading it from YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.model import Tier


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one name of the origin: what takes its place, how safely, and why.

    `to` is None where nothing takes its place, and equals `name` where the name stays as it is.
    `also` lists further names to write with the first one.
    """

    name: str
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

    name: str
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


def normalised(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return distribution.lower().replace("_", "-").replace(".", "-")


# Canonical names of the variables that every chip has under some name.
CANONICAL_VARIABLES = {
    "visible_devices": "CUDA_VISIBLE_DEVICES",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING",
    "allocator": "PYTORCH_CUDA_ALLOC_CONF",
}


def environment(raw: Mapping[str, Any], where: str) -> dict[str, Advice]:
    """Variables by canonical name from the roles, `map`, `keep` and `report` of chip.yaml."""
    found: dict[str, Advice] = {}
    for role, value in raw.items():
        if role in ("map", "keep", "report"):
            continue
        canonical = CANONICAL_VARIABLES.get(role)
        if canonical is None:
            raise JoyError(
                f"unknown key '{role}'.{did_you_mean(str(role), CANONICAL_VARIABLES)}",
                where=where,
                help=f"known keys: {', '.join(CANONICAL_VARIABLES)}, map, keep, report",
            )
        found[canonical] = read_advice(canonical, value, Tier.SAFE, where)
    for part in ("map", "keep", "report"):
        if not isinstance(raw.get(part) or {}, dict):
            raise JoyError(f"expected a mapping, got {raw[part]!r}", where=f"{where}.{part}")
    for name, value in (raw.get("map") or {}).items():
        found[name] = read_advice(name, value, Tier.UNSAFE, f"{where}.map")
    for name, value in (raw.get("keep") or {}).items():
        item = value if isinstance(value, dict) else {"note": value}
        found[name] = read_advice(name, {"to": name, **item}, Tier.REPORT, f"{where}.keep")
    for name, value in (raw.get("report") or {}).items():
        item = value if isinstance(value, dict) else {"note": value}
        found[name] = read_advice(name, item, Tier.REPORT, f"{where}.report")
    return found


def read_advice(name: str, value: Any, tier: Tier, where: str) -> Advice:
    """One item: a plain string is `to`; a mapping has the fields of `Advice`."""
    where = f"{where}.{name}"
    if not isinstance(name, str):
        raise JoyError(f"a name must be text, got {name!r}", where=where, help="quote it")
    if isinstance(value, str):
        return Advice(name=name, to=value, tier=tier)
    if not isinstance(value, dict):
        raise JoyError(f"expected a name or a mapping, got {value!r}", where=where)
    values = checked_fields(Advice, value, where, without=("name",))
    given = values.pop("tier", None)
    # Without a replacement there is nothing to write.
    picked = read_tier(given, where) if given else (tier if values.get("to") else Tier.REPORT)
    values["also"] = tuple(values.get("also") or ())
    texts = {key: values.get(key) or "" for key in ("note", "source", "date")}
    return Advice(name=name, tier=picked, **{**values, **texts})


def read_tier(value: Any, where: str) -> Tier:
    """`safe`, `unsafe` or `report`."""
    try:
        return Tier(value)
    except ValueError:
        raise JoyError(
            f"unknown tier {value!r}", where=where, help="safe, unsafe or report"
        ) from None


def is_text(value: Any) -> bool:
    """Text, or nothing."""
    return value is None or isinstance(value, str)


def is_number(value: Any) -> bool:
    """A number; YAML's true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_texts(value: Any) -> bool:
    """A list of texts, or nothing."""
    return value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def is_figures(value: Any) -> bool:
    """A mapping of names to numbers, or nothing."""
    return value is None or (
        isinstance(value, dict)
        and all(isinstance(k, str) and is_number(v) for k, v in value.items())
    )


# What a field's annotation accepts, and how to say so.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (is_text, "text"),
    "str | None": (is_text, "text"),
    "Tier": (is_text, "text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "bool | None": (lambda value: value is None or isinstance(value, bool), "true or false"),
    "float | None": (lambda value: value is None or is_number(value), "a number"),
    "tuple[str, ...]": (is_texts, "a list of texts"),
    "Mapping[str, float]": (is_figures, "a mapping of names to numbers"),
}


def checked_fields(
    noun: type, value: Mapping[str, Any], where: str, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The keys of `value`, all of them fields of `noun`; dates become text."""
    known = [f.name for f in fields(noun) if f.name not in without]
    for key in value:
        if key not in known:
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), known)}",
                where=where,
                help=f"known keys: {', '.join(known)}",
            )
    kinds = {f.name: str(f.type) for f in fields(noun)}
    values = {key: str(item) if key == "date" else item for key, item in value.items()}
    for key, item in values.items():
        fits, wanted = KINDS[kinds[key]]
        if not fits(item):
            raise JoyError(f"'{key}' must be {wanted}, got {item!r}", where=where)
    return values


def read_package(name: str, value: Any, path: Path) -> PackageAdvice:
    """One item of packages.yaml."""
    where = f"{path} packages.{name}"
    if not isinstance(value, dict):
        raise JoyError(f"expected a mapping, got {value!r}", where=where)
    values = checked_fields(PackageAdvice, value, where, without=("name",))
    given = values.pop("tier", None) or "report"
    texts = {
        key: values.get(key) or ""
        for key in ("versions", "cpu_builds", "covers", "note", "source", "date")
    }
    values["releases"] = tuple(values.get("releases") or ())
    return PackageAdvice(name=name, tier=read_tier(given, where), **{**values, **texts})
