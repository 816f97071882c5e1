"""A chip and its models: `chip.yaml` as an object, and the files beside it when asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from joymigrate.chips import names as name_lists
from joymigrate.chips import versions as version_lists
from joymigrate.chips.advice import (
    NameAdvice,
    PackageAdvice,
    environment,
    normalise_name,
    read_advice,
    read_package,
)
from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.model import Tier
from joymigrate.schema import read_yaml

NOTHING: Mapping[str, Any] = {}


@functools.lru_cache(maxsize=256)
def read_once(path: Path, changed: int) -> Any:
    """A YAML file, read anew when its time of change (`changed`, ns) is another one."""
    return read_yaml(path)


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
    device: str  # torch device type, "cuda" for the origin
    module: str  # torch.<device>
    backend: str  # collective backend
    package: str | None  # module to import so that torch knows the device, None if built in
    distribution: str | None  # what to install for it
    folder: Path
    library: str | None = None  # a shared library without which `package` does not import
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
    version_rows: tuple[Mapping[str, Any], ...] = ()  # of a chip without versions.yaml
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
    def import_modules(self) -> Mapping[str, str]:
        """Modules below the chip's one that are imported from elsewhere: `amp` → full name."""
        return self.api.get("import_modules") or {}

    def import_name(self, rest: str) -> str:
        """What stands in an import statement for the module `rest` (`amp`, or empty for the
        chip's own module)."""
        for head, full in self.import_modules.items():
            if rest == head or rest.startswith(f"{head}."):
                return full + rest[len(head) :]
        return f"{self.import_module}.{rest}" if rest else self.import_module

    @property
    def tensor(self) -> Mapping[str, str]:
        """Tensor and module attributes by their canonical name: `cuda`, `is_cuda`."""
        found = {"cuda": self.device, "is_cuda": f"is_{self.device}"}
        return {**found, **(self.api.get("tensor") or {})}

    def data(self, relative: str) -> Any:
        """A YAML file of the chip's folder, or None where it has none."""
        path = self.folder / relative
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None
        return read_once(path, changed) if path.is_file() else None

    def matrix(self) -> version_lists.Matrix:
        """Which versions of its software go together: empty where the chip has no such file."""
        where = (self.folder, version_lists.FILE)
        if where not in CACHE:
            CACHE[where] = version_lists.read(self.folder) or version_lists.Matrix()
        found: version_lists.Matrix = CACHE[where]
        return found

    @property
    def versions(self) -> tuple[Mapping[str, Any], ...]:
        """Releases of the chip's package with their torch and SDK, the newest first."""
        rows = self.matrix().releases
        found = tuple({k: v for k, v in asdict(row).items() if v} for row in rows)
        return found or self.version_rows

    @property
    def default_version(self) -> str | None:
        """The version of its package that is assumed when the user names none."""
        return self.matrix().default or (str(self.api.get("version") or "") or None)

    def name_list(self) -> name_lists.NameList | None:
        """The chip's name list; None where the chip has none (then names are not checked)."""
        relative = self.api.get("names")
        return read_names(self.folder, str(relative)) if relative else None

    def version(self, version: str | None = None) -> str | None:
        """The listed version that `version` belongs to, or the default one; None without a list."""
        listed = self.name_list()
        if listed is None:
            return None
        return listed.pick(version, self.default_version)

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
        return listed.has(found[0], found[1], picked)

    def typed_tensors(self, version: str | None = None) -> frozenset[str]:
        """Legacy tensor types that exist: `FloatTensor`, …"""
        return frozenset(n for n in self.names(version) if n.endswith("Tensor") and "." not in n)

    def renamed(self) -> Mapping[str, NameAdvice]:
        """Names below the module that the chip calls differently (canonical → own)."""
        return advice(self, "api", "renamed", Tier.SAFE)

    def absent(self) -> Mapping[str, NameAdvice]:
        """Names below the module that the chip lacks, with what to do instead."""
        return advice(self, "api", "absent", Tier.REPORT)

    def moved(self) -> Mapping[str, NameAdvice]:
        """Full dotted names outside the module: canonical → own."""
        return advice(self, "api", "moved", Tier.SAFE)

    def variables(self) -> Mapping[str, NameAdvice]:
        """Environment variables by canonical name; patterns (`NVTE_*`) included."""
        return advice(self, "environment", None, Tier.REPORT)

    def commands(self) -> Mapping[str, NameAdvice]:
        """Command-line tools and monitoring modules by canonical name."""
        return advice(self, "tools", None, Tier.REPORT)

    def operators(self) -> Mapping[str, NameAdvice]:
        """Known replacements of operators that CUDA sources bind, by name or pattern."""
        return advice(self, "kernels", "replacements", Tier.REPORT)

    def operator(self, name: str) -> NameAdvice | None:
        """The replacement of a bound operator: its own, or that of the longest pattern."""
        return match_pattern(self.operators(), name)

    def imports(self) -> Mapping[str, NameAdvice]:
        """Advice per imported third-party module (`flash_attn`), longest prefix wins."""
        return file_advice(self, "imports.yaml", "imports")

    def attributes(self) -> Mapping[str, NameAdvice]:
        """Advice per keyword or attribute value (`attn_implementation=flash_attention_2`)."""
        return file_advice(self, "imports.yaml", "attributes")

    def packages(self) -> Mapping[str, PackageAdvice]:
        """Advice per third-party distribution, by normalised name (`flash-attn`)."""
        return package_advice(self)

    def import_advice(self, module: str) -> NameAdvice | None:
        """Advice on the longest listed prefix of a dotted module."""
        known = self.imports()
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            if found := known.get(".".join(parts[:length])):
                return found
        return None

    def package_advice(self, distribution: str) -> PackageAdvice | None:
        """Advice on a distribution; `Flash_Attn` and `flash-attn` are one."""
        return match_pattern(self.packages(), normalise_name(distribution))

    def variable(self, name: str) -> NameAdvice | None:
        """Advice on an environment variable: its own, or that of the longest pattern."""
        return match_pattern(self.variables(), name)

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


T = TypeVar("T")


def match_pattern(known: Mapping[str, T], name: str) -> T | None:
    """The entry called `name`, else the one with the longest pattern (`NCCL_*`) that fits."""
    if name in known:
        return known[name]
    fitting = [key for key in known if key.endswith("*") and name.startswith(key[:-1])]
    return known[max(fitting, key=len)] if fitting else None


CACHE: dict[tuple[Path, str], Any] = {}


def forget(folder: Path) -> None:
    """Read the files of a chip's folder again when they are asked for."""
    for key in [key for key in CACHE if key[0] == folder]:
        del CACHE[key]


def read_names(folder: Path, relative: str) -> name_lists.NameList:
    """A name list, read once."""
    where = (folder, relative)
    if where not in CACHE:
        path = folder / relative
        if not path.is_file():
            raise JoyError(
                "the name list is missing", where=str(path), help="see docs/how-to/chips.md"
            )
        CACHE[where] = name_lists.parse(path)
    found: name_lists.NameList = CACHE[where]
    return found


def advice(chip: Chip, section: str, key: str | None, tier: Tier) -> Mapping[str, NameAdvice]:
    """One mapping of chip.yaml as `NameAdvice`, read once per chip."""
    where = (chip.folder, f"{section}.{key}")
    if where not in CACHE:
        raw = getattr(chip, section)
        raw = (raw.get(key) if key else raw) or NOTHING
        path, keys = chip.folder / "chip.yaml", (section, key) if key else (section,)
        if not isinstance(raw, dict):
            raise JoyError(f"expected a mapping, got {raw!r}", where=f"{path} {'.'.join(keys)}")
        if section == "environment":
            read = environment(raw, path)
        else:
            read = {n: read_advice(n, value, tier, path, keys) for n, value in raw.items()}
        CACHE[where] = read
    found: Mapping[str, NameAdvice] = CACHE[where]
    return found


COMMON = "common/advice"  # beside the chips' folders: advice that holds for every chip


def layers(chip: Chip, relative: str, key: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """One mapping of a YAML file, from the common advice first and from the chip's folder last."""
    for path in (rules_root() / COMMON / relative, chip.folder / relative):
        if path.is_file():
            document = read_yaml(path)
            found = (document or {}).get(key) or {} if isinstance(document or {}, dict) else None
            if not isinstance(found, dict):
                raise JoyError("expected a mapping of keys", where=f"{path} {key}")
            yield path, found


def file_advice(chip: Chip, relative: str, key: str) -> Mapping[str, NameAdvice]:
    """One mapping of a YAML file beside chip.yaml as `NameAdvice`, read once per chip."""
    where = (chip.folder, f"{relative}:{key}")
    if where not in CACHE:
        found: dict[str, NameAdvice] = {}
        if not chip.origin:
            for path, raw in layers(chip, relative, key):
                found |= {n: read_advice(n, v, Tier.REPORT, path, (key,)) for n, v in raw.items()}
        CACHE[where] = found
    read: Mapping[str, NameAdvice] = CACHE[where]
    return read


def package_advice(chip: Chip) -> Mapping[str, PackageAdvice]:
    """Packages of the common advice and of the chip, read once."""
    where = (chip.folder, "packages.yaml")
    if where not in CACHE:
        found: dict[str, PackageAdvice] = {}
        if not chip.origin:
            for path, raw in layers(chip, "packages.yaml", "packages"):
                found |= {normalise_name(str(n)): read_package(n, v, path) for n, v in raw.items()}
        CACHE[where] = found
    read: Mapping[str, PackageAdvice] = CACHE[where]
    return read
