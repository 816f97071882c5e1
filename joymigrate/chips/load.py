"""Finds chip folders and turns `chip.yaml` into `Chip`.

A chip is a folder with a `chip.yaml`. Folders come from joymigrate's own `rules/` and from
packages that register one under the entry point group `joymigrate.chips` (the entry point loads
to a path, or to a function that returns one). No chip's name occurs in this file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from joymigrate.chips.chip import Chip, Sku
from joymigrate.data import folders, rules_root
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import document, load_file, read, setting

SCHEMA = "joymigrate.chip/1"
HELP = "see docs/how-to/chips.md"


@dataclass(frozen=True, slots=True)
class ChipApi:
    """What is known about the chip's names; keys beyond these are read where they are used."""

    OPEN = True

    names: str | None = setting(None, "the file with the chip's names")
    version: str | None = setting(None, "the version that is assumed", words=True)
    import_module: str | None = setting(None, "what stands in an import, where not `module`")
    import_modules: Mapping[str, str] = setting(make=dict, help="modules imported from elsewhere")
    tensor: Mapping[str, str] = setting(make=dict, help="attributes by their canonical name")


@document("chip", "What is known of a family of accelerators: chip.yaml in its folder.")
@dataclass(frozen=True, slots=True)
class ChipFile:
    """A chip's file. Mappings without a form of their own are read where they are used."""

    name: str = setting(help="what --to calls it")
    title: str = setting(help="what people call it")
    device: str = setting(help="torch's device type")
    backend: str = setting(help="its collective backend")
    module: str | None = setting(None, "its torch module; default: torch.DEVICE")
    package: str | None = setting(None, "what is imported so that torch knows it")
    distribution: str | None = setting(None, "what is installed for it")
    library: str | None = setting(None, "a shared library without which `package` fails")
    aliases: tuple[str, ...] = setting((), "further names for --to")
    origin: bool = setting(False, "a platform that code comes from")
    default: bool = setting(False, "the target when none is named")
    cpu_fallback: bool = setting(False, "operators without a kernel run on the CPU")
    api: ChipApi = setting(make=ChipApi, help="names of the chip")
    environment: Mapping[str, Any] = setting(make=dict, help="environment variables")
    tools: Mapping[str, Any] = setting(make=dict, help="command-line tools")
    launch: Mapping[str, Any] = setting(make=dict, help="resources, images, launchers")
    shim: Mapping[str, Any] = setting(make=dict, help="the vendor's run-time shim")
    kernels: Mapping[str, Any] = setting(make=dict, help="operators of CUDA sources")
    skus: tuple[Sku, ...] = setting((), "the models")
    versions: tuple[Mapping[str, Any], ...] = setting((), "releases, without a versions.yaml")
    notes: tuple[Any, ...] = setting((), "what else is known")

    def __post_init__(self) -> None:
        for key in ("name", "title", "device", "backend"):
            if not getattr(self, key):
                raise JoyError(f"'{key}' is empty", where=key)


def load_folder(folder: Path, source: str = "built in") -> Chip:
    """Read one chip folder. Unknown or missing keys raise `JoyError` with file and key."""
    path = folder / "chip.yaml"
    raw, place = load_file(path, "chip file", HELP)
    file = read(ChipFile, raw, place, help=HELP)
    values = {
        one.name: getattr(file, one.name) for one in fields(ChipFile) if one.name != "versions"
    }
    values |= {
        "module": file.module or f"torch.{file.device}",
        "api": raw.get("api") or {},
        "version_rows": file.versions,
    }
    return Chip(**values, folder=folder, source=source)


@functools.cache
def all_chips() -> dict[str, Chip]:
    """Every known chip by name. A name or alias that two chips claim is an error."""
    found: dict[str, Chip] = {}
    claimed: dict[str, Chip] = {}
    for folder, source in folders():
        chip = load_folder(folder, source)
        for name in (chip.name, *chip.aliases):
            if name in claimed:
                raise JoyError(
                    f"two chips are called '{name}'",
                    where=f"{claimed[name].folder} and {folder}",
                    help="rename one of them",
                )
            claimed[name] = chip
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
    drafted = (Path(name) / "chip.yaml").is_file()
    raise JoyError(
        f"unknown chip '{name}'.{did_you_mean(name, known)}",
        help=f"the folder {name} is no package: joymigrate chips new --as-package makes one to "
        "install"
        if drafted
        else "joymigrate chips list",
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
