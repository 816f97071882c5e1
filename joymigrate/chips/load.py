"""Finds chip folders and turns `chip.yaml` into `Chip`.

A chip is a folder with a `chip.yaml`. Folders come from joymigrate's own `rules/` and from
packages that register one under the entry point group `joymigrate.chips` (the entry point loads
to a path, or to a function that returns one). No chip's name occurs in this file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.chips.advice import checked_fields, is_text, is_texts
from joymigrate.chips.chip import Chip, Sku
from joymigrate.data import folders, rules_root
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import read_yaml

SCHEMA = "joymigrate.chip/1"
HELP = "see docs/chips.md"


REQUIRED = ("name", "title", "device", "backend")
TEXTS = (*REQUIRED, "schema", "module", "package", "distribution", "library")
FLAGS = ("origin", "default", "cpu_fallback")
MAPPINGS = ("environment", "tools", "api", "launch", "shim", "kernels")
LISTS = ("aliases", "skus", "versions", "notes")
KNOWN_KEYS = (*TEXTS, *FLAGS, *MAPPINGS, *LISTS)


def load_folder(folder: Path, source: str = "built in") -> Chip:
    """Read one chip folder. Unknown or missing keys raise `JoyError` with file and key."""
    path = folder / "chip.yaml"
    raw = read_yaml(path)
    check_keys(raw, path)
    device = str(raw["device"])
    flags: dict[str, Any] = {key: raw.get(key) or False for key in FLAGS}
    mappings: dict[str, Any] = {key: raw.get(key) or {} for key in MAPPINGS}
    return Chip(
        name=str(raw["name"]),
        title=str(raw["title"]),
        device=device,
        module=str(raw.get("module") or f"torch.{device}"),
        backend=str(raw["backend"]),
        package=raw.get("package"),
        distribution=raw.get("distribution"),
        library=raw.get("library"),
        folder=folder,
        aliases=tuple(raw.get("aliases") or ()),
        skus=tuple(load_sku(item, path) for item in raw.get("skus") or ()),
        version_rows=tuple(raw.get("versions") or ()),
        notes=tuple(raw.get("notes") or ()),
        source=source,
        **flags,
        **mappings,
    )


def check_keys(raw: Any, path: Path) -> None:
    """Raise `JoyError` unless `raw` has the required keys, only known ones, and their types."""
    where = str(path)
    if not isinstance(raw, dict):
        raise JoyError("a chip file is a mapping of keys", where=where, help=HELP)
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise JoyError(
            f"schema {raw['schema']!r} is not one this joymigrate reads",
            where=where,
            help=f"schema: {SCHEMA}",
        )
    for key in raw:
        if key not in KNOWN_KEYS:
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), KNOWN_KEYS)}", where=where, help=HELP
            )
    missing = [key for key in REQUIRED if not raw.get(key)]
    if missing:
        raise JoyError(f"missing {', '.join(missing)}", where=where, help=HELP)
    kinds = ((TEXTS, str, "text"), (FLAGS, bool, "true or false"), (MAPPINGS, dict, "a mapping"))
    for keys, kind, wanted in (*kinds, (LISTS, list, "a list")):
        for key in keys:
            if raw.get(key) is not None and not isinstance(raw[key], kind):
                raise JoyError(f"'{key}' must be {wanted}, got {raw[key]!r}", where=where)
    check_inner(raw, where)


def check_inner(raw: Mapping[str, Any], where: str) -> None:
    """Raise `JoyError` for values inside `aliases` and `api` that no reader could use."""
    if not is_texts(raw.get("aliases")):
        raise JoyError(f"'aliases' must be a list of texts, got {raw['aliases']!r}", where=where)
    api = raw.get("api") or {}
    for key in ("names", "import_module"):
        if not is_text(api.get(key)):
            raise JoyError(f"'{key}' must be text, got {api[key]!r}", where=f"{where} api")
    for key in ("tensor", "import_modules"):
        names = api.get(key) or {}
        if not isinstance(names, dict) or not is_texts([*names, *names.values()]):
            raise JoyError(f"'{key}' must map names to names, got {names!r}", where=f"{where} api")


def load_sku(raw: Any, path: Path) -> Sku:
    """Read one item of `skus`."""
    if not isinstance(raw, dict) or "name" not in raw:
        raise JoyError(f"a SKU needs a name, got {raw!r}", where=str(path), help=HELP)
    where = f"{path} skus.{raw['name']}"
    values = checked_fields(Sku, raw, where)
    for key in ("dtypes", "match"):
        values[key] = tuple(values.get(key) or ())
    if not isinstance(values["name"], str):  # YAML reads 910_93 as a number
        raise JoyError(f"'name' must be text, got {raw['name']!r}", where=where, help="quote it")
    texts = {key: values.get(key) or "" for key in ("note", "source")}
    return Sku(**{**values, **texts, "peak_tflops": values.get("peak_tflops") or {}})


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
