"""Checks `api` of chip.yaml and the name list: every name is well-formed and exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

from joymigrate.chips.advice import NameAdvice
from joymigrate.chips.chip import Chip
from joymigrate.chips.load import first_marked
from joymigrate.chips.problems import ChipProblem, at, unknown_keys
from joymigrate.model import Tier

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
API_KEYS = (
    "names",
    "version",
    "import_module",
    "import_modules",
    "tensor",
    "capability",
    "memory_error",
    "renamed",
    "absent",
    "moved",
)


def check_api(chip: Chip) -> Iterator[ChipProblem]:
    """`api` has known keys; names are well-formed; every target exists in the name list."""
    yield from unknown_keys(chip, "api", chip.api, API_KEYS)
    for text in (chip.import_module, *chip.import_modules, *chip.import_modules.values()):
        if not DOTTED.fullmatch(text):
            yield at(chip, "api.import_modules", f"{text!r} is not a dotted name")
    origin = first_marked("origin")
    for section, entries in (("renamed", chip.renamed()), ("absent", chip.absent())):
        for name, item in entries.items():
            full = f"{origin.module}.{name}"
            yield from check_entry(chip, f"api.{section}.{name}", full, item, origin)
            if section == "renamed" and item.to and not item.to.startswith(f"{chip.module}."):
                target = f"{chip.module}.{item.to}"
                yield from check_target(chip, f"api.{section}.{name}", target, origin)
            elif item.to and section == "absent":
                yield from check_target(chip, f"api.{section}.{name}", item.to, origin)
            if section == "absent" and name in chip.names():
                yield at(chip, f"api.absent.{name}", f"{chip.module}.{name} exists after all")
    for name, item in chip.moved().items():
        yield from check_entry(chip, f"api.moved.{name}", name, item, origin)
        if item.to and not item.keeps:
            yield from check_target(chip, f"api.moved.{name}", item.to, origin)


def check_entry(
    chip: Chip, key: str, full: str, item: NameAdvice, origin: Chip
) -> Iterator[ChipProblem]:
    """One name of the origin: well-formed, known there, and safe only when it can go back."""
    for text in (full, item.to or full):
        if not DOTTED.fullmatch(text):
            yield at(chip, key, f"{text!r} is not a dotted name")
    if origin.exists(full) is False:
        yield at(chip, key, f"{origin.name} has no {full}")
    if item.one_way and item.tier is Tier.SAFE:
        yield at(chip, key, "a way without a return can't be safe: tier unsafe or report")
    if item.to is None and not item.note:
        yield at(chip, key, "says neither what takes its place (to) nor what to do (note)")
    if item.to is None and item.tier is not Tier.REPORT:
        yield at(chip, key, f"tier {item.tier.value} needs `to`")


def check_target(chip: Chip, key: str, target: str, origin: Chip) -> Iterator[ChipProblem]:
    """A name that would be written exists in some version of the chip's package, or in torch."""
    listed = chip.name_list()
    exists: bool | None = None
    if listed is not None:
        known = [chip.exists(target, version) for version in listed.versions]
        exists = True if True in known else (False if False in known else None)
    if exists is None:
        exists = origin.exists(target)
    if exists is False:
        yield at(chip, key, f"{target} is in no version of the name list")


def check_names(chip: Chip) -> Iterator[ChipProblem]:
    """The name list parses, covers the chip's module, and knows the default version."""
    listed = chip.name_list()
    if listed is None:
        return
    if chip.module not in listed.sections:
        yield ChipProblem(str(listed.path), "", f"has no section [{chip.module}]")
    default = chip.default_version
    if default is not None and default not in listed.versions:
        yield at(chip, "api.version", f"{default!r} is not a version of {listed.path.name}")
