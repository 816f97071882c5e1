"""Chips as data: `rules/<chip>/` folders and outside packages, turned into `Chip` objects.

A chip is a folder with a `chip.yaml`. Folders come from joymigrate's own `rules/` and from
packages that register one under the entry point group `joymigrate.chips` (the entry point loads
to a path, or to a function that returns one). No chip's name occurs in this file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError, did_you_mean

ENTRY_POINT_GROUP = "joymigrate.chips"
SCHEMA = "joymigrate.chip/1"


@dataclass(frozen=True, slots=True)
class Sku:
    """One model of a chip. Unknown figures are None, never guessed.

    `peak_tflops` maps a dtype name to dense TFLOP/s; `bandwidth_gb_s` is memory bandwidth.
    """

    name: str
    memory_gib: float | None = None
    dtypes: tuple[str, ...] = ()
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    bandwidth_gb_s: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Chip:
    """What joymigrate knows about one family of accelerators. Names only; no code."""

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
    source: str = "built in"

    @property
    def keeps_device(self) -> bool:
        """Whether programs address this chip by the origin's device name (`cuda`)."""
        return not self.origin and self.device == "cuda"

    def data(self, relative: str) -> Any:
        """A YAML file of the chip's folder, or None where it has none."""
        path = self.folder / relative
        return read_yaml(path) if path.is_file() else None


def rules_root() -> Path:
    """The `rules` folder: inside the installed package, else beside it in a checkout."""
    packaged = Path(__file__).parent / "_rules"
    if packaged.is_dir():
        return packaged
    beside = Path(__file__).parent.parent / "rules"
    if beside.is_dir():
        return beside
    raise JoyError(
        "the rules of this joymigrate are missing",
        where=str(packaged),
        help="reinstall it: pip install --force-reinstall joymigrate",
    )


def read_yaml(path: Path) -> Any:
    """Parse one YAML file; a syntax error names the file and the line."""
    try:
        # The C loader is ten times faster; every wheel of PyYAML has it.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return yaml.load(path.read_bytes(), Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise JoyError(
            f"not valid YAML: {getattr(error, 'problem', error)}",
            where=f"{path}{line}",
            help="correct the file",
        ) from error


def folders() -> Iterator[tuple[Path, str]]:
    """Every chip folder with where it came from: built in ones first, then outside packages."""
    for path in sorted(rules_root().iterdir()):
        if (path / "chip.yaml").is_file():
            yield path, "built in"
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        found = entry.load()
        path = Path(os.fspath(found() if callable(found) else found))
        package = entry.dist.name if entry.dist else entry.value
        if not (path / "chip.yaml").is_file():
            raise JoyError(
                f"the chip '{entry.name}' of package {package} has no chip.yaml",
                where=str(path),
                help=f"correct the entry point '{ENTRY_POINT_GROUP}' of {package}",
            )
        yield path, f"package {package}"


REQUIRED = ("name", "title", "device", "backend")
KNOWN_KEYS = (
    *REQUIRED,
    "schema",
    "module",
    "package",
    "distribution",
    "aliases",
    "origin",
    "default",
    "cpu_fallback",
    "environment",
    "tools",
    "api",
    "launch",
    "shim",
    "skus",
    "versions",
    "members",
    "notes",
)


def load_folder(folder: Path, source: str = "built in") -> Chip:
    """Read one chip folder. Unknown or missing keys raise `JoyError` with file and key."""
    path = folder / "chip.yaml"
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise JoyError(
            "a chip file is a mapping of keys", where=str(path), help="see docs/chips.md"
        )
    for key in raw:
        if key not in KNOWN_KEYS:
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), KNOWN_KEYS)}",
                where=str(path),
                help="see docs/chips.md for the keys of a chip",
            )
    missing = [key for key in REQUIRED if not raw.get(key)]
    if missing:
        raise JoyError(f"missing {', '.join(missing)}", where=str(path), help="see docs/chips.md")
    device = str(raw["device"])
    return Chip(
        name=str(raw["name"]),
        title=str(raw["title"]),
        device=device,
        module=str(raw.get("module") or f"torch.{device}"),
        backend=str(raw["backend"]),
        package=raw.get("package"),
        distribution=raw.get("distribution"),
        folder=folder,
        aliases=tuple(raw.get("aliases") or ()),
        origin=bool(raw.get("origin", False)),
        default=bool(raw.get("default", False)),
        cpu_fallback=bool(raw.get("cpu_fallback", False)),
        environment=raw.get("environment") or {},
        tools=raw.get("tools") or {},
        api=raw.get("api") or {},
        launch=raw.get("launch") or {},
        shim=raw.get("shim") or {},
        skus=tuple(load_sku(item, path) for item in raw.get("skus") or ()),
        versions=tuple(raw.get("versions") or ()),
        source=source,
    )


def load_sku(raw: Any, path: Path) -> Sku:
    """Read one item of `skus`."""
    if not isinstance(raw, dict) or "name" not in raw:
        raise JoyError(
            f"a SKU needs a name, got {raw!r}", where=str(path), help="see docs/chips.md"
        )
    known = Sku.__slots__
    for key in raw:
        if key not in known:
            raise JoyError(
                f"unknown key '{key}' of SKU {raw['name']}.{did_you_mean(str(key), known)}",
                where=str(path),
                help="see docs/chips.md",
            )
    values = {**raw, "dtypes": tuple(raw.get("dtypes") or ())}
    return Sku(**values)


@functools.cache
def all_chips() -> dict[str, Chip]:
    """Every known chip by name. Two chips of one name are an error."""
    found: dict[str, Chip] = {}
    for folder, source in folders():
        chip = load_folder(folder, source)
        if chip.name in found:
            raise JoyError(
                f"two chips are called '{chip.name}'",
                where=f"{found[chip.name].folder} and {folder}",
                help="rename one of them",
            )
        found[chip.name] = chip
    return found


def get(name: str) -> Chip:
    """The chip of this name or alias; an unknown one raises `JoyError` with the nearest name."""
    chips = all_chips()
    if name in chips:
        return chips[name]
    by_alias = {alias: chip for chip in chips.values() for alias in chip.aliases}
    if name in by_alias:
        return by_alias[name]
    known = [*chips, *by_alias]
    raise JoyError(
        f"unknown chip '{name}'.{did_you_mean(name, known)}",
        help="joymigrate chips list",
    )


def origin() -> Chip:
    """The platform that code is migrated from unless the user says otherwise."""
    return first_marked("origin")


def target(name: str | None) -> Chip:
    """The chip called `name`, or the default target when `name` is None."""
    return get(name) if name else first_marked("default")


def first_marked(flag: str) -> Chip:
    """The first chip whose boolean key `flag` is true."""
    for chip in all_chips().values():
        if getattr(chip, flag):
            return chip
    raise JoyError(f"no chip is marked `{flag}: true`", where=str(rules_root()))
