"""Checks every file of a chip folder and names each problem by file and key.

`load_folder` stops at the first mistake so that no command runs on wrong data; this goes on and
lists them all.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from joymigrate.chips import overrides
from joymigrate.chips.chip import Chip, forget
from joymigrate.chips.load import all_chips, first_marked, load_folder
from joymigrate.chips.problems import ChipProblem, at, problem_of, unknown_keys
from joymigrate.chips.validate_names import DOTTED, check_api, check_names, check_target
from joymigrate.data import rules_root
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.model import Tier
from joymigrate.schema import read_yaml

NAME = re.compile(r"[a-z][a-z0-9_-]*")
WORD = re.compile(r"[A-Za-z_]\w*")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*\*?")
SHIM_KEYS = (
    *("import", "line", "switch", "switch_note", "covers", "source", "gaps", "note"),
    *("attributes", "typed_tensors", "by_number", "unreached", "reworded", "fails"),
)
KERNEL_KEYS = ("replacements", "triton", "extension", "source", "note")
# torch's names, and formats that data sheets give figures for.
DTYPES = (
    *("float64", "float32", "tf32", "hf32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "hif8", "float4", "mxfp4"),
    *("int64", "int32", "int16", "int8", "int4", "uint8", "bool", "complex64", "complex128"),
)


def validate(folder: Path) -> list[ChipProblem]:
    """Every problem of a chip folder; empty when it is valid."""
    forget(folder)
    try:
        chip = load_folder(folder)
    except JoyError as error:
        return [problem_of(error, folder / "chip.yaml")]
    checks: tuple[Callable[[Chip], Iterator[ChipProblem]], ...] = (
        check_identity,
        check_files,
        check_api,
        check_names,
        check_environment,
        check_advice,
        check_packages,
        check_skus,
        check_versions,
        check_shim_and_kernels,
        check_overrides,
    )
    found: list[ChipProblem] = []
    for check in checks:
        try:
            found += check(chip)
        except JoyError as error:
            found.append(problem_of(error, folder))
    return list(dict.fromkeys(found))


def check_identity(chip: Chip) -> Iterator[ChipProblem]:
    """Names have the form that commands, torch and Python expect, and belong to one chip only."""
    for name in (chip.name, *chip.aliases):
        if not NAME.fullmatch(str(name)):
            yield at(chip, "name", f"{name!r} is not a name: lower-case letters, digits, - and _")
    for key in ("device", "backend"):
        if not WORD.fullmatch(getattr(chip, key)):
            yield at(chip, key, f"{getattr(chip, key)!r} is not an identifier")
    for key, value in (("module", chip.module), ("package", chip.package)):
        if value is not None and not DOTTED.fullmatch(value):
            yield at(chip, key, f"{value!r} is not a dotted name")
    if chip.package == "torch":
        yield at(chip, "package", "torch is imported anyway: null says that no other is needed")
    for other in all_chips().values():
        if other.folder.resolve() == chip.folder.resolve():
            continue
        if other.name == chip.name and other.source != "built in":
            continue  # an installed copy of the folder that is being checked
        for name in {chip.name, *chip.aliases} & {other.name, *other.aliases}:
            yield at(chip, "name", f"'{name}' is taken by {other.name} ({other.source})")
        for flag in ("origin", "default"):
            if getattr(chip, flag) and getattr(other, flag):
                yield at(chip, flag, f"{other.name} has it already")


def check_files(chip: Chip) -> Iterator[ChipProblem]:
    """Every YAML file parses, and no text was cut at a comma (`{note: one, two}`)."""
    for path in sorted(chip.folder.rglob("*.yaml")):
        try:
            document = read_yaml(path)
        except JoyError as error:
            yield problem_of(error, path)
            continue
        for key in cut_texts(document, ""):
            yield ChipProblem(str(path), key, "has no value; quote a text that holds a comma")


def cut_texts(value: Any, at: str) -> Iterator[str]:
    """Keys that are sentences without a value: what YAML makes of an unquoted comma."""
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{at}.{key}".lstrip(".")
            if item is None and " " in str(key):
                yield here
            yield from cut_texts(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from cut_texts(item, f"{at}[{index}]")


def check_environment(chip: Chip) -> Iterator[ChipProblem]:
    """Environment variables look like such."""
    for name, item in chip.variables().items():
        for text in (name, item.to or name, *item.also):
            if not VARIABLE.fullmatch(text):
                yield at(chip, f"environment.{name}", f"{text!r} is not a variable's name")
    for name, item in chip.commands().items():
        if item.tier is Tier.SAFE and item.to is None:
            yield at(chip, f"tools.{name}", "tier safe needs `to`")
    for key in ("resource", "gres", "docker", "runtime", "image"):
        if key in chip.launch and not isinstance(chip.launch[key], str):
            yield at(chip, f"launch.{key}", f"expected text, got {chip.launch[key]!r}")
    for key in ("resource_patterns", "device_nodes", "images"):
        if key in chip.launch and not isinstance(chip.launch[key], list):
            yield at(chip, f"launch.{key}", f"expected a list, got {chip.launch[key]!r}")


def check_advice(chip: Chip) -> Iterator[ChipProblem]:
    """Advice on imports and keywords says something, dates are dates."""
    for section, entries in (("imports", chip.imports()), ("attributes", chip.attributes())):
        for name, item in entries.items():
            key = f"{section}.{name}"
            if item.to is None and not item.note:
                yield at(chip, key, "says neither `to` nor `note`", "imports.yaml")
            if section == "imports" and not DOTTED.fullmatch(name):
                yield at(chip, key, "is not a module's dotted name", "imports.yaml")
            if section == "attributes" and not re.fullmatch(r"\w+=\S+", name):
                yield at(chip, key, "is not KEYWORD=VALUE", "imports.yaml")
            yield from check_date(chip, key, item.date, "imports.yaml")


def check_packages(chip: Chip) -> Iterator[ChipProblem]:
    """Advice on packages names a range that parses, a date, and where it comes from."""
    known = chip.packages()
    own = (chip.data("packages.yaml") or {}).get("packages") or {}
    for name, item in known.items():
        key = f"packages.{name}"
        try:
            SpecifierSet(item.versions)
        except InvalidSpecifier:
            text = f"versions {item.versions!r} is not a range such as >=2.1,<2.14"
            yield at(chip, key, text, "packages.yaml")
        if not (item.to or item.note or item.covers):
            yield at(chip, key, "says neither `to` nor `note`", "packages.yaml")
        if name in own and item.to and not (item.date and (item.source or item.note)):
            yield at(chip, key, "a replacement needs a date and a source", "packages.yaml")
        yield from check_date(chip, key, item.date, "packages.yaml")


def check_date(chip: Chip, key: str, date: str, file: str) -> Iterator[ChipProblem]:
    """A date is ISO 8601, or empty."""
    try:
        if date:
            datetime.date.fromisoformat(date)
    except ValueError:
        yield at(chip, key, f"date {date!r} is not YYYY-MM-DD", file)


def check_skus(chip: Chip) -> Iterator[ChipProblem]:
    """Figures are positive numbers of known dtypes, and say where they come from."""
    seen: set[str] = set()
    for sku in chip.skus:
        key = f"skus.{sku.name}"
        if sku.name in seen:
            yield at(chip, key, "there are two of that name")
        seen.add(sku.name)
        figures = {"memory_gib": sku.memory_gib, "bandwidth_gb_s": sku.bandwidth_gb_s}
        figures |= {f"peak_tflops.{k}": v for k, v in sku.peak_tflops.items()}
        for name, figure in figures.items():
            if figure is not None and (not isinstance(figure, int | float) or figure <= 0):
                yield at(chip, f"{key}.{name}", f"expected a positive number, got {figure!r}")
        for dtype in {*sku.dtypes, *sku.peak_tflops}:
            if dtype not in DTYPES:
                yield at(chip, key, f"unknown dtype '{dtype}'.{did_you_mean(dtype, DTYPES)}")
        if any(v is not None for v in figures.values()) and not sku.source:
            yield at(chip, key, "figures need a source")


def check_versions(chip: Chip) -> Iterator[ChipProblem]:
    """The compatibility table names versions of torch that parse."""
    for index, item in enumerate(chip.versions):
        key = f"versions[{index}]"
        if not isinstance(item, Mapping) or "torch" not in item:
            yield at(chip, key, f"expected a mapping with `torch`, got {item!r}")
            continue
        try:
            Version(str(item["torch"]))
        except InvalidVersion:
            yield at(chip, f"{key}.torch", f"{item['torch']!r} is not a version")


def check_shim_and_kernels(chip: Chip) -> Iterator[ChipProblem]:
    """`shim` and `kernels` have known keys; every gap and replacement says what it is about."""
    yield from unknown_keys(chip, "shim", chip.shim, SHIM_KEYS)
    if chip.shim and not (chip.shim.get("line") or chip.shim.get("switch")):
        yield at(chip, "shim", "needs a line to import or an environment switch")
    known = rule_ids()
    for key in ("covers", "gaps"):
        if not isinstance(chip.shim.get(key) or [], list):
            yield at(chip, f"shim.{key}", f"expected a list, got {chip.shim[key]!r}")
            return
    for rule in chip.shim.get("covers") or ():
        if rule not in known:
            near = did_you_mean(str(rule), known)
            yield at(chip, "shim.covers", f"there is no rule {rule!r}.{near}")
    for index, gap in enumerate(chip.shim.get("gaps") or ()):
        key = f"shim.gaps[{index}]"
        if not isinstance(gap, Mapping) or not gap.get("what"):
            yield at(chip, key, f"expected a mapping with `what`, got {gap!r}")
        elif not re.fullmatch(r"\d+\.\d+", str(gap.get("until", "1.0"))):
            yield at(chip, key, f"until {gap['until']!r} is not a version major.minor")
    yield from unknown_keys(chip, "kernels", chip.kernels, KERNEL_KEYS)
    for name, item in chip.operators().items():
        if item.to is None and not item.note:
            yield at(chip, f"kernels.replacements.{name}", "says neither `to` nor `note`")
        if item.to:
            key = f"kernels.replacements.{name}"
            yield from check_target(chip, key, item.to, first_marked("origin"))


def check_overrides(chip: Chip) -> Iterator[ChipProblem]:
    """`overrides.yaml` changes rules that exist, in ways that exist."""
    path = chip.folder / overrides.FILE
    found = overrides.problems(chip)
    yield from (problem_of(error, path) for error in found)
    known = rule_ids()
    for rule in () if found else overrides.overrides(chip):
        if rule not in known:
            near = did_you_mean(rule, known)
            yield at(chip, rule, f"there is no such rule.{near}", overrides.FILE)


def rule_ids() -> set[str]:
    """Ids of the rules in `rules/common/*.yaml`; files that are mappings hold other data."""
    found: set[str] = set()
    for path in (rules_root() / "common").glob("*.yaml"):
        document = read_yaml(path)
        if isinstance(document, list):
            found |= {str(item.get("id")) for item in document if isinstance(item, dict)}
    return found
