"""A chip's own operator list as data: `ops/operators.yaml` of its folder, or one YAML or CSV file.

The list names what the chip's torch package registers, per version, with where that was read.
What torch makes of the rest (composites, views, fallbacks) is worked out in `resolve.py`.
The format is described in docs/how-to/oplist.md; mistakes name file, line or key.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip
from joymigrate.chips.names import RELEASE, inside, release_key, version_key
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.profile.oplist.form import OperatorFields, OperatorsFile, Package
from joymigrate.profile.support import SupportStatus
from joymigrate.schema import read_file

FOLDER = "ops"
FILES = ("operators.yaml", "operators.csv")
ENTRY_KEYS = ("status", "dtypes", "kernels", "note", "alternative", "versions", "contiguous")
COLUMNS = ("op", "overload", "source", *ENTRY_KEYS)
LAYOUT = "layout"  # a status of lists: kernels for sparse or quantised tensors only
NAME = re.compile(r"(?:(?P<namespace>\w+)::)?(?P<base>\w+)(?:\.(?P<overload>\w+|\*))?")
DTYPE = re.compile(r"[a-z][a-z0-9_]*")
HELP = "see docs/how-to/oplist.md"


@dataclass(frozen=True, slots=True)
class OplistEntry:
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
class ListRelease:
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
class Entries:
    """A whole list. `releases` is empty where the file names no versions."""

    path: Path
    entries: tuple[OplistEntry, ...]
    releases: Mapping[str, ListRelease]
    default: str | None
    namespaces: tuple[str, ...]
    fallback: str | None
    kernels: Path | None = None
    answers: Path | None = None
    model: str = ""  # of the answers
    package: Package | None = None
    aliases: Path | None = None
    reports: Path | None = None
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

    def of(self, version: str) -> Iterator[OplistEntry]:
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
        "docs/how-to/oplist.md describes it",
    )


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
    file = read_file(OperatorsFile, path, "operator list", HELP)
    table = read_csv(beside(path, file.table)) if file.table else iter(())
    releases = releases_of(file, path)
    if file.default is not None and file.default not in releases:
        raise JoyError(f"'default' names no version: {file.default!r}", where=str(path), help=HELP)
    ops = file.ops if isinstance(file.ops, Mapping) else dict.fromkeys(file.ops or ())
    inline = (
        entry(name, None, columns_of(one) if one else {}, f"{path} ops.{name}")
        for name, one in ops.items()
    )
    rows = (*table, *inline)
    return Entries(
        path=path,
        entries=rows,
        releases=releases,
        default=file.default,
        namespaces=file.namespaces or own_namespaces(rows),
        fallback=file.meta.fallback,
        kernels=beside(path, file.kernels) if file.kernels else None,
        answers=beside(path, file.answers) if file.answers else None,
        model=file.model,
        package=file.package,
        aliases=beside(path, file.aliases) if file.aliases else None,
        reports=beside(path, file.reports) if file.reports else None,
        environment=file.meta.env,
    )


def releases_of(file: OperatorsFile, path: Path) -> dict[str, ListRelease]:
    """`versions` as releases; `meta.torch` names a single one."""
    found = {
        version: ListRelease(version, one.source, one.commit, one.date)
        for version, one in file.versions.items()
    }
    if not found and file.meta.torch:
        version = ".".join(file.meta.torch.split(".")[:2])
        found[version] = ListRelease(version, file.meta.source, file.meta.commit, file.meta.date)
    for version in found:
        if not RELEASE.fullmatch(version):
            raise JoyError(
                f"{version!r} is not a torch version", where=str(path), help='quote it: "2.10"'
            )
    return found


def columns_of(one: OperatorFields) -> dict[str, Any]:
    """The fields of an inline operator as a table's columns have them."""
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    return values | {"alternative": one.alternative or one.alt}


def read_csv(path: Path) -> Iterator[OplistEntry]:
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
) -> OplistEntry:
    """One operator, checked."""
    match = NAME.fullmatch(name.strip())
    if match is None:
        raise JoyError(f"{name!r} is not an operator", where=where, help="such as aten::add.Tensor")
    status = str(fields.get("status") or "")
    known = [*(one.value for one in SupportStatus), LAYOUT]
    if status and status not in known:
        raise JoyError(
            f"unknown status '{status}'.{did_you_mean(status, known)}",
            where=where,
            help=f"one of {', '.join(known)}",
        )
    dtypes = words(fields.get("dtypes"))
    for dtype in dtypes:
        if not DTYPE.fullmatch(dtype):
            raise JoyError(f"{dtype!r} is not a dtype", where=where, help="torch's names: float16")
    span = str(fields.get("versions") or "")
    for part in span.replace(",", " ").split():
        inside(part, [], where)
    return OplistEntry(
        name=f"{match['namespace'] or 'aten'}::{match['base']}",
        overload=match["overload"] or (overload if overload is not None else None),
        status=status,
        dtypes=dtypes,
        kernels=words(fields.get("kernels")),
        contiguous=words(fields.get("contiguous")),
        note=str(fields.get("note") or ""),
        alternative=str(fields.get("alternative") or ""),
        versions=span,
        source=(row or {}).get("source") or "",
    )


def own_namespaces(rows: Iterable[OplistEntry]) -> tuple[str, ...]:
    """Namespaces that occur in a list, without torch's."""
    return tuple(sorted({row.name.partition("::")[0] for row in rows} - {"aten"}))


def beside(path: Path, name: Any) -> Path:
    """A file named in a list, which lies in the list's folder."""
    found = path.parent / str(name)
    if not found.is_file():
        raise JoyError(f"there is no file '{name}'", where=str(path), help=HELP)
    return found


def words(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """A list, or a text with spaces or commas between the words."""
    return tuple(value.replace(",", " ").split() if isinstance(value, str) else value or ())
