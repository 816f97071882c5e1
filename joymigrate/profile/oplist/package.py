"""Reads the operator list that a chip's torch package ships, from a wheel or as installed.

The file is what torchgen generates an out-of-tree backend's registrations from: sections of
schemas or bare names. Nothing of the package is imported, so it can be read without its driver.

    supported, symint, autograd   kernels of the chip
    quant                         kernels for quantised tensors only
    custom                        the package's own operators
    sparse: … without impl_ns     kernels for sparse tensors only
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError
from joymigrate.profile.oplist.entries import LAYOUT, ListRelease, OplistEntry
from joymigrate.profile.oplist.form import Package
from joymigrate.schema.source import loader

DENSE = ("supported", "symint", "autograd")
SECTIONS = (*DENSE, "quant", "custom")
QUANTISED = "for quantised tensors only"
SPARSE = "for sparse tensors only"


@dataclass(frozen=True, slots=True)
class Shipped:
    """What one release of a package registers. `custom` are its own operators."""

    release: ListRelease
    names: Mapping[str, str]  # base or base.overload → note
    custom: Mapping[str, str]
    full: str = ""  # 2.6.0.post3, where `release.version` is 2.6


def read_wheel(path: Path, package: Package) -> Shipped:
    """The list inside a wheel (a zip file)."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = member(archive, package.list, path)
            version = member(archive, package.version, path) if package.version else ""
            date = "-".join(f"{n:02d}" for n in archive.getinfo(package.list).date_time[:3])
    except (zipfile.BadZipFile, OSError) as error:
        raise JoyError(f"not a wheel: {error}", where=str(path), help="--wheel FILE.whl") from None
    release = release_of(version, f"{package.distribution} {{version}} wheel, {package.list}", date)
    return replace(parse(text, release, str(path)), full=full_version(version))


def member(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    """One text of a wheel."""
    try:
        return archive.read(name).decode("utf-8")
    except KeyError:
        raise JoyError(
            f"the wheel holds no {name}", where=str(path), help="is it the chip's torch package?"
        ) from None


def read_installed(package: Package) -> Shipped | None:
    """The list of the installed package; None where it is not installed."""
    try:
        distribution = metadata.distribution(package.distribution)
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(package.list)))
    if not path.is_file():
        return None
    version = Path(str(distribution.locate_file(package.version))) if package.version else None
    text = version.read_text(encoding="utf-8") if version and version.is_file() else ""
    title = f"{package.distribution} {{version}} installed, {package.list}"
    found = parse(path.read_text(encoding="utf-8"), release_of(text, title, ""), str(path))
    return replace(found, full=full_version(text))


def release_of(text: str, title: str, date: str) -> ListRelease:
    """A release from the package's version.py."""
    full = full_version(text)
    commit = re.search(r"git_version = '([0-9a-f]+)'", text)
    short = ".".join(full.split(".")[:2])
    return ListRelease(short, title.format(version=full), commit[1][:12] if commit else "", date)


def full_version(text: str) -> str:
    """The version in a version.py, without its local part; empty where there is none."""
    version = re.search(r"__version__ = '([^'+]+)", text)
    return version[1] if version else ""


def parse(text: str, release: ListRelease, where: str) -> Shipped:
    """The list of one release."""
    try:
        document = yaml.load(text, Loader=loader())
    except yaml.YAMLError as error:
        raise JoyError(f"not valid YAML: {error}", where=where) from None
    if not isinstance(document, dict) or "supported" not in document:
        raise JoyError(
            "this is no list of an out-of-tree backend: it has no section `supported`",
            where=where,
            help="docs/how-to/oplist.md says what is read",
        )
    names: dict[str, str] = {}
    for section in (*DENSE, "quant"):
        for name, item in items(document.get(section), where):
            note = QUANTISED if section == "quant" else note_of(item)
            if note in (QUANTISED, SPARSE):
                names.setdefault(name, note)
            else:
                names[name] = note
    custom = {name: note_of(item) for name, item in items(document.get("custom"), where)}
    return Shipped(release, names, custom)


def items(section: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names of one section with their fields."""
    for item in section or ():
        fields = item if isinstance(item, dict) else {"func": item}
        if not isinstance(fields.get("func"), str):
            raise JoyError(f"not an operator: {item!r}", where=where)
        yield fields["func"].partition("(")[0].strip(), fields


def note_of(fields: Mapping[str, Any]) -> str:
    """What a list says beyond the name."""
    if fields.get("sparse") and not fields.get("impl_ns"):
        return SPARSE
    if fields.get("impl_ns") == "acl_op":
        return "compiled per shape (acl_op only)"
    return ""


def entries_of(shipped: Shipped, namespace: str) -> Iterator[OplistEntry]:
    """The list as entries; the package's own operators are in `namespace`."""
    for name, note in {**shipped.custom, **shipped.names}.items():
        base, _, overload = name.partition(".")
        status = LAYOUT if note in (QUANTISED, SPARSE) else ""
        own = name in shipped.custom
        yield OplistEntry(f"{namespace if own else 'aten'}::{base}", overload, status, note=note)
