"""The nouns: a chip, one of its models, and advice about one name of the origin's vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from joymigrate.chips import names as name_lists
from joymigrate.chips.yaml_file import read_yaml
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.model import Tier

NOTHING: Mapping[str, Any] = {}


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
    for 64-bit Arm servers exists (None: unknown).
    """

    name: str
    to: str | None = None
    versions: str = ""
    covers: str = ""
    aarch64: bool | None = None
    tier: Tier = Tier.REPORT
    note: str = ""
    source: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Sku:
    """One model of a chip. Unknown figures are None, never guessed.

    `peak_tflops` maps a dtype name to dense TFLOP/s; `bandwidth_gb_s` is memory bandwidth.
    `match` are the names that the chip's tools and `get_device_name` report.
    """

    name: str
    memory_gib: float | None = None
    dtypes: tuple[str, ...] = ()
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    bandwidth_gb_s: float | None = None
    match: tuple[str, ...] = ()
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Chip:
    """What joymigrate knows about one family of accelerators. Names only; no code.

    The mappings hold `chip.yaml` as written; the methods read it, and the files beside it, into
    nouns. `names.txt`, `packages.yaml` and `imports.yaml` are read when first asked for.
    """

    name: str
    title: str
    device: str  # torch device type: "cuda", "npu", …
    module: str  # torch.<device>
    backend: str  # collective backend
    package: str | None  # module to import so that torch knows the device, None if built in
    distribution: str | None  # what to install for it
    folder: Path
    aliases: tuple[str, ...] = ()
    origin: bool = False  # a platform that code is migrated from
    default: bool = False  # the target when the user names none
    cpu_fallback: bool = False  # operators without a kernel run on the CPU
    environment: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, Any] = field(default_factory=dict)
    api: Mapping[str, Any] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)
    shim: Mapping[str, Any] = field(default_factory=dict)
    skus: tuple[Sku, ...] = ()
    versions: tuple[Mapping[str, Any], ...] = ()
    kernels: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Any, ...] = ()
    source: str = "built in"

    @property
    def keeps_device(self) -> bool:
        """Whether programs address this chip by the origin's device name (`cuda`)."""
        return not self.origin and self.device == "cuda"

    @property
    def import_module(self) -> str:
        """The module that stands in `import …` and `from … import`: not every chip's package
        registers `torch.<device>` as a module that can be imported."""
        return str(self.api.get("import_module") or self.module)

    @property
    def tensor(self) -> Mapping[str, str]:
        """Tensor and module attributes by their canonical name: `cuda`, `is_cuda`."""
        found = {"cuda": self.device, "is_cuda": f"is_{self.device}"}
        return {**found, **(self.api.get("tensor") or {})}

    def data(self, relative: str) -> Any:
        """A YAML file of the chip's folder, or None where it has none."""
        path = self.folder / relative
        return read_yaml(path) if path.is_file() else None

    def name_list(self) -> name_lists.NameList | None:
        """The chip's name list; None where the chip has none (then names are not checked)."""
        relative = self.api.get("names")
        return read_names(self.folder / str(relative)) if relative else None

    def version(self, version: str | None = None) -> str | None:
        """The listed version that `version` belongs to, or the default one; None without a list."""
        listed = self.name_list()
        if listed is None:
            return None
        default = self.api.get("version")
        return listed.pick(version, str(default) if default else None)

    def names(self, version: str | None = None) -> frozenset[str]:
        """Dotted names below the chip's module (`Stream`, `amp.autocast`)."""
        listed = self.name_list()
        picked = self.version(version)
        return listed.names(self.module, picked) if listed and picked else frozenset()

    def exists(self, dotted: str, version: str | None = None) -> bool | None:
        """Whether the full dotted name exists for this version; None where nobody read it."""
        listed = self.name_list()
        picked = self.version(version)
        if listed is None or picked is None:
            return None
        if dotted in listed.sections:
            return listed.knows(dotted, picked)
        found = listed.section_of(dotted)
        if found is None or not listed.knows(found[0], picked):
            return None
        return found[1] in listed.names(found[0], picked)

    def typed_tensors(self, version: str | None = None) -> frozenset[str]:
        """Legacy tensor types that exist: `FloatTensor`, …"""
        return frozenset(n for n in self.names(version) if n.endswith("Tensor") and "." not in n)

    def renamed(self) -> Mapping[str, Advice]:
        """Names below the module that the chip calls differently (canonical → own)."""
        return advice(self, "api", "renamed", Tier.SAFE)

    def absent(self) -> Mapping[str, Advice]:
        """Names below the module that the chip lacks, with what to do instead."""
        return advice(self, "api", "absent", Tier.REPORT)

    def moved(self) -> Mapping[str, Advice]:
        """Full dotted names outside the module: canonical → own."""
        return advice(self, "api", "moved", Tier.SAFE)

    def variables(self) -> Mapping[str, Advice]:
        """Environment variables by canonical name; patterns (`NVTE_*`) included."""
        return advice(self, "environment", None, Tier.REPORT)

    def commands(self) -> Mapping[str, Advice]:
        """Command-line tools and monitoring modules by canonical name."""
        return advice(self, "tools", None, Tier.REPORT)

    def imports(self) -> Mapping[str, Advice]:
        """Advice per imported third-party module (`flash_attn`), longest prefix wins."""
        return file_advice(self, "imports.yaml", "imports")

    def attributes(self) -> Mapping[str, Advice]:
        """Advice per keyword or attribute value (`attn_implementation=flash_attention_2`)."""
        return file_advice(self, "imports.yaml", "attributes")

    def packages(self) -> Mapping[str, PackageAdvice]:
        """Advice per third-party distribution, by normalised name (`flash-attn`)."""
        return package_advice(self)

    def import_advice(self, module: str) -> Advice | None:
        """Advice on the longest listed prefix of a dotted module."""
        known = self.imports()
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            if found := known.get(".".join(parts[:length])):
                return found
        return None

    def package_advice(self, distribution: str) -> PackageAdvice | None:
        """Advice on a distribution; `Flash_Attn` and `flash-attn` are one."""
        known = self.packages()
        name = normalised(distribution)
        if name in known:
            return known[name]
        for pattern, found in known.items():
            if pattern.endswith("*") and name.startswith(pattern[:-1]):
                return found
        return None

    def sku(self, name: str) -> Sku | None:
        """The model called `name`, or the one whose `match` it contains (longest match wins)."""
        wanted = name.casefold()
        best: tuple[int, Sku] | None = None
        for sku in self.skus:
            if sku.name.casefold() == wanted:
                return sku
            for text in sku.match:
                if text.casefold() in wanted and (best is None or len(text) > best[0]):
                    best = (len(text), sku)
        return best[1] if best else None


def normalised(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return distribution.lower().replace("_", "-").replace(".", "-")


@functools.cache
def read_names(path: Path) -> name_lists.NameList:
    """A name list, read once."""
    if not path.is_file():
        raise JoyError("the name list is missing", where=str(path), help="see docs/chips.md")
    return name_lists.parse(path)


CACHE: dict[tuple[Path, str], Any] = {}


def advice(chip: Chip, section: str, key: str | None, tier: Tier) -> Mapping[str, Advice]:
    """One mapping of chip.yaml as `Advice`, read once per chip."""
    where = (chip.folder, f"{section}.{key}")
    if where not in CACHE:
        raw = getattr(chip, section)
        raw = (raw.get(key) if key else raw) or NOTHING
        if section == "environment":
            raw = {**raw}
            flat = {name: raw.pop(name, None) or {} for name in ("map", "keep", "report")}
            read = {**environment(chip, raw, flat)}
        else:
            read = {n: read_advice(n, value, tier, chip, where[1]) for n, value in raw.items()}
        CACHE[where] = read
    found: Mapping[str, Advice] = CACHE[where]
    return found


# Canonical names of the variables that every chip has under some name.
CANONICAL_VARIABLES = {
    "visible_devices": "CUDA_VISIBLE_DEVICES",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING",
    "allocator": "PYTORCH_CUDA_ALLOC_CONF",
}


def environment(chip: Chip, roles: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Advice]:
    """Variables by canonical name from the roles, `map`, `keep` and `report` of chip.yaml."""
    found: dict[str, Advice] = {}
    for role, value in roles.items():
        canonical = CANONICAL_VARIABLES.get(role)
        if canonical is None:
            raise JoyError(
                f"unknown key '{role}'.{did_you_mean(role, CANONICAL_VARIABLES)}",
                where=f"{chip.folder / 'chip.yaml'} environment",
                help=f"known keys: {', '.join(CANONICAL_VARIABLES)}, map, keep, report",
            )
        found[canonical] = read_advice(canonical, value, Tier.SAFE, chip, "environment")
    for name, value in flat["map"].items():
        found[name] = read_advice(name, value, Tier.UNSAFE, chip, "environment.map")
    for name, value in flat["keep"].items():
        raw = value if isinstance(value, dict) else {"note": value}
        found[name] = read_advice(name, {"to": name, **raw}, Tier.REPORT, chip, "environment.keep")
    for name, value in flat["report"].items():
        raw = value if isinstance(value, dict) else {"note": value}
        found[name] = read_advice(name, raw, Tier.REPORT, chip, "environment.report")
    return found


def read_advice(name: str, value: Any, tier: Tier, chip: Chip, key: str) -> Advice:
    """One item: a plain string is `to`; a mapping has the fields of `Advice`."""
    where = f"{chip.folder / 'chip.yaml'} {key}.{name}"
    if isinstance(value, str):
        return Advice(name=str(name), to=value, tier=tier)
    if not isinstance(value, dict):
        raise JoyError(f"expected a name or a mapping, got {value!r}", where=where)
    values = checked_fields(Advice, value, where, without=("name",))
    given = values.pop("tier", None)
    # Without a replacement there is nothing to write.
    picked = read_tier(given, where) if given else (tier if values.get("to") else Tier.REPORT)
    values["also"] = tuple(values.get("also") or ())
    return Advice(name=str(name), tier=picked, **values)


def read_tier(value: Any, where: str) -> Tier:
    """`safe`, `unsafe` or `report`."""
    try:
        return Tier(value)
    except ValueError:
        raise JoyError(
            f"unknown tier {value!r}", where=where, help="safe, unsafe or report"
        ) from None


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
    return {key: str(item) if key == "date" else item for key, item in value.items()}


def file_advice(chip: Chip, relative: str, key: str) -> Mapping[str, Advice]:
    """One mapping of a YAML file beside chip.yaml as `Advice`, read once per chip."""
    where = (chip.folder, f"{relative}:{key}")
    if where not in CACHE:
        raw = (chip.data(relative) or {}).get(key) or {}
        CACHE[where] = {
            name: read_advice(name, value, Tier.REPORT, chip, f"{relative} {key}")
            for name, value in raw.items()
        }
    found: Mapping[str, Advice] = CACHE[where]
    return found


def package_advice(chip: Chip) -> Mapping[str, PackageAdvice]:
    """`packages.yaml` of a chip, read once."""
    where = (chip.folder, "packages.yaml")
    if where not in CACHE:
        raw = (chip.data("packages.yaml") or {}).get("packages") or {}
        CACHE[where] = {normalised(n): read_package(n, value, chip) for n, value in raw.items()}
    found: Mapping[str, PackageAdvice] = CACHE[where]
    return found


def read_package(name: str, value: Any, chip: Chip) -> PackageAdvice:
    """One item of packages.yaml."""
    where = f"{chip.folder / 'packages.yaml'} {name}"
    if not isinstance(value, dict):
        raise JoyError(f"expected a mapping, got {value!r}", where=where)
    values = checked_fields(PackageAdvice, value, where, without=("name",))
    given = values.pop("tier", "report")
    return PackageAdvice(name=name, tier=read_tier(given, where), **values)
