"""A chip's own operator list as data: `ops/operators.yaml` of its folder, or one YAML or CSV file.

The list names what the chip's torch package registers, per version, with where that was read.
What torch makes of the rest (composites, views, fallbacks) is worked out in `resolve.py`.
The format is described in docs/oplist.md; mistakes name file, line or key.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, read_yaml
from joymigrate.chips.names import RELEASE, inside, release_key, version_key
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.profile.support import Status

SCHEMA = "joymigrate.operators/1"
FOLDER = "ops"
FILES = ("operators.yaml", "operators.csv")
META_KEYS = ("chip", "torch", "source", "commit", "date", "fallback", "env", "note")
KEYS = (
    *("schema", "meta", "versions", "default", "namespaces", "ops", "table", "kernels", "inputs"),
    *("package", "aliases"),
)
RELEASE_KEYS = ("source", "commit", "date")
ENTRY_KEYS = ("status", "dtypes", "kernels", "note", "alternative", "versions", "contiguous")
COLUMNS = ("op", "overload", "source", *ENTRY_KEYS)
FALLBACKS = ("cpu", "error")
LAYOUT = "layout"  # a status of lists: kernels for sparse or quantised tensors only
NAME = re.compile(r"(?:(?P<namespace>\w+)::)?(?P<base>\w+)(?:\.(?P<overload>\w+|\*))?")
DTYPE = re.compile(r"[a-z][a-z0-9_]*")
HELP = "see docs/oplist.md"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a list: `name` is `namespace::base`, `overload` None where none was given.

    `overload` is "*" for every overload. `status` is what the list says, empty for native;
    "layout" for kernels that take sparse or quantised tensors only. `versions` is a range such as
    `2.6-`, empty for all.
    """

    name: str
    overload: str | None
    status: str = ""
    dtypes: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    contiguous: tuple[str, ...] = ()
    note: str = ""
    alternative: str = ""
    versions: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Where one version of a list was read."""

    version: str
    source: str = ""
    commit: str = ""
    date: str = ""

    def __str__(self) -> str:
        commit = f"@{self.commit}" if self.commit else ""
        date = f" ({self.date})" if self.date else ""
        return f"{self.source}{commit}{date}"


@dataclass(frozen=True, slots=True)
class Package:
    """Where the chip's installed torch package, or its wheel, keeps its list."""

    distribution: str
    list: str  # path inside site-packages or the wheel
    version: str = ""  # path of a version.py


@dataclass(frozen=True, slots=True)
class Entries:
    """A whole list. `releases` is empty where the file names no versions."""

    path: Path
    entries: tuple[Entry, ...]
    releases: Mapping[str, Release]
    default: str | None
    namespaces: tuple[str, ...]
    fallback: str | None
    kernels: Path | None = None
    inputs: Path | None = None
    package: Package | None = None
    aliases: Path | None = None
    environment: Mapping[str, str] | None = None

    def pick(self, version: str | None) -> str:
        """The listed release that `version` is, or the newest listed one before it; the default one
        for None. Two numbers (`2.6`) are the first release of that version."""
        if not self.releases:
            return version or ""
        if version is None:
            return self.default or max(self.releases, key=version_key)
        before = [
            known for known in self.releases
            if version_key(known) == version_key(version)
            and release_key(known) <= release_key(version)
        ]  # fmt: skip
        if before:
            return max(before, key=release_key)
        listed = ", ".join(sorted(self.releases, key=version_key))
        raise JoyError(
            f"no operators are known for version {version}",
            where=str(self.path),
            help=f"known versions: {listed}",
        )

    def later(self, version: str) -> str | None:
        """The newest listed release behind the first one of a `major.minor`; None: no other."""
        same = [v for v in self.releases if version_key(v) == version_key(version)]
        newest = max(same, key=release_key, default=version)
        return newest if version in same and newest != version and version.count(".") == 1 else None

    def of(self, version: str) -> Iterator[Entry]:
        """The entries that exist in a picked version."""
        spans: dict[str, bool] = {}
        for entry in self.entries:
            span = entry.versions
            if span and span not in spans:
                parts = span.replace(",", " ").split()
                spans[span] = any(inside(part, [version], str(self.path)) for part in parts)
            if not span or spans[span]:
                yield entry


def find(chip: Chip) -> Path:
    """The list in a chip's folder; `JoyError` where nobody has written one."""
    folder = chip.folder / FOLDER
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise JoyError(
        f"no operators are known for {chip.name}",
        where=str(folder),
        help=f"write {FOLDER}/{FILES[0]} in the chip's folder, or name a list with --ops FILE; "
        "docs/oplist.md describes it",
    )


def has_list(chip: Chip) -> bool:
    """Whether the chip's folder holds an operator list."""
    return any((chip.folder / FOLDER / name).is_file() for name in FILES)


@functools.cache
def read(path: Path) -> Entries:
    """Read a list: YAML with everything in it or with a table beside it, or a CSV alone."""
    if not path.is_file():
        raise JoyError("there is no such operator list", where=str(path), help=HELP)
    if path.suffix.lower() == ".csv":
        rows = tuple(read_csv(path))
        return Entries(path, rows, {}, None, own_namespaces(rows), None)
    return read_document(path)


def read_document(path: Path) -> Entries:
    """A YAML list, checked key by key."""
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise JoyError("an operator list is a mapping of keys", where=str(path), help=HELP)
    known_only(raw, KEYS, str(path))
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise JoyError(
            f"schema {raw['schema']!r} is not one this joymigrate reads",
            where=str(path),
            help=f"schema: {SCHEMA}",
        )
    meta = mapping(raw.get("meta"), f"{path} meta")
    known_only(meta, META_KEYS, f"{path} meta")
    fallback = meta.get("fallback")
    if fallback not in (None, *FALLBACKS):
        raise JoyError(
            f"'fallback' is cpu or error, got {fallback!r}", where=f"{path} meta", help=HELP
        )
    if "ops" not in raw and "table" not in raw:
        raise JoyError("needs `ops` or `table`", where=str(path), help=HELP)
    table = read_csv(beside(path, raw["table"])) if "table" in raw else iter(())
    inline = read_ops(raw["ops"], path) if "ops" in raw else iter(())
    rows = (*table, *inline)
    releases = read_releases(raw, meta, path)
    default = raw.get("default")
    if default is not None and str(default) not in releases:
        raise JoyError(f"'default' names no version: {default!r}", where=str(path), help=HELP)
    named = [str(item) for item in listed(raw.get("namespaces"), f"{path} namespaces")]
    return Entries(
        path=path,
        entries=rows,
        releases=releases,
        default=str(default) if default is not None else None,
        namespaces=tuple(named) or own_namespaces(rows),
        fallback=fallback,
        kernels=beside(path, raw["kernels"]) if raw.get("kernels") else None,
        inputs=beside(path, raw["inputs"]) if raw.get("inputs") else None,
        package=read_package(raw.get("package"), path),
        aliases=beside(path, raw["aliases"]) if raw.get("aliases") else None,
        environment=mapping(meta.get("env"), f"{path} meta.env"),
    )


def read_releases(
    raw: Mapping[str, Any], meta: Mapping[str, Any], path: Path
) -> dict[str, Release]:
    """`versions` as releases; `meta.torch` names a single one."""
    found: dict[str, Release] = {}
    for version, item in mapping(raw.get("versions"), f"{path} versions").items():
        where = f"{path} versions.{version}"
        fields = mapping(item, where)
        known_only(fields, RELEASE_KEYS, where)
        found[str(version)] = Release(str(version), **{k: str(v) for k, v in fields.items()})
    if not found and meta.get("torch"):
        version = ".".join(str(meta["torch"]).split(".")[:2])
        fields = {k: str(meta[k]) for k in RELEASE_KEYS if meta.get(k)}
        found[version] = Release(version, **fields)
    for version in found:
        if not RELEASE.fullmatch(version):
            raise JoyError(
                f"{version!r} is not a torch version", where=str(path), help='quote it: "2.10"'
            )
    return found


def read_ops(raw: Any, path: Path) -> Iterator[Entry]:
    """Inline operators: a list of names, or a mapping of names to nothing or to fields."""
    if isinstance(raw, list):
        raw = dict.fromkeys(raw)
    if not isinstance(raw, dict) or not raw:
        raise JoyError("`ops` names no operator", where=f"{path} ops", help=HELP)
    for name, item in raw.items():
        where = f"{path} ops.{name}"
        fields = dict(mapping(item, where))
        if "alt" in fields:
            fields["alternative"] = fields.pop("alt")
        known_only(fields, ENTRY_KEYS, where)
        yield entry(str(name), None, fields, where)


def read_csv(path: Path) -> Iterator[Entry]:
    """Operators of a CSV with the column `op` and any of the other known ones."""
    if not path.is_file():
        raise JoyError("there is no such table", where=str(path), help=HELP)
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        columns = lines.fieldnames or []
        if "op" not in columns:
            raise JoyError("a table of operators needs a column `op`", where=str(path), help=HELP)
        for column in columns:
            if column not in COLUMNS:
                hint = did_you_mean(column, COLUMNS)
                raise JoyError(f"unknown column '{column}'.{hint}", where=str(path), help=HELP)
        for number, row in enumerate(lines, 2):
            where = f"{path}:{number}"
            if None in row:
                raise JoyError("more values than columns", where=where, help="quote commas")
            overload = row.get("overload")
            yield entry(row["op"], overload, {k: row.get(k) or "" for k in ENTRY_KEYS}, where, row)


def entry(
    name: str,
    overload: str | None,
    fields: Mapping[str, Any],
    where: str,
    row: Mapping[str, str] | None = None,
) -> Entry:
    """One operator, checked."""
    match = NAME.fullmatch(name.strip())
    if match is None:
        raise JoyError(f"{name!r} is not an operator", where=where, help="such as aten::add.Tensor")
    status = str(fields.get("status") or "")
    known = [*(one.value for one in Status), LAYOUT]
    if status and status not in known:
        raise JoyError(
            f"unknown status '{status}'.{did_you_mean(status, known)}",
            where=where,
            help=f"one of {', '.join(known)}",
        )
    dtypes = words(fields.get("dtypes"), where)
    for dtype in dtypes:
        if not DTYPE.fullmatch(dtype):
            raise JoyError(f"{dtype!r} is not a dtype", where=where, help="torch's names: float16")
    span = str(fields.get("versions") or "")
    for part in span.replace(",", " ").split():
        inside(part, [], where)
    return Entry(
        name=f"{match['namespace'] or 'aten'}::{match['base']}",
        overload=match["overload"] or (overload if overload is not None else None),
        status=status,
        dtypes=dtypes,
        kernels=words(fields.get("kernels"), where),
        contiguous=words(fields.get("contiguous"), where),
        note=str(fields.get("note") or ""),
        alternative=str(fields.get("alternative") or ""),
        versions=span,
        source=(row or {}).get("source") or "",
    )


def read_package(raw: Any, path: Path) -> Package | None:
    """Where an installed package keeps its list."""
    if raw is None:
        return None
    where = f"{path} package"
    fields = mapping(raw, where)
    known_only(fields, ("distribution", "list", "version"), where)
    if not fields.get("distribution") or not fields.get("list"):
        raise JoyError("needs `distribution` and `list`", where=where, help=HELP)
    return Package(**{key: str(value) for key, value in fields.items()})


def own_namespaces(rows: Iterable[Entry]) -> tuple[str, ...]:
    """Namespaces that occur in a list, without torch's."""
    return tuple(sorted({row.name.partition("::")[0] for row in rows} - {"aten"}))


def beside(path: Path, name: Any) -> Path:
    """A file named in a list, which lies in the list's folder."""
    found = path.parent / str(name)
    if not found.is_file():
        raise JoyError(f"there is no file '{name}'", where=str(path), help=HELP)
    return found


def words(value: Any, where: str) -> tuple[str, ...]:
    """A list, or a text with spaces or commas between the words."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    return tuple(str(item) for item in listed(value, where))


def listed(value: Any, where: str) -> list[Any]:
    """A list, or nothing."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise JoyError(f"expected a list, got {value!r}", where=where, help=HELP)
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A mapping, or nothing."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise JoyError(f"expected a mapping of keys, got {value!r}", where=where, help=HELP)
    return value


def known_only(raw: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise `JoyError` for a key that no reader knows."""
    for key in raw:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise JoyError(f"unknown key '{key}'.{hint}", where=where, help=HELP)
