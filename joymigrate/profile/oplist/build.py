"""Puts the lists of several releases together into one table with version ranges."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from joymigrate.chips import Chip
from joymigrate.chips.names import release_key, span_of, version_key
from joymigrate.profile.oplist.entries import Entries, OplistEntry
from joymigrate.profile.oplist.package import Shipped, entries_of

COLUMNS = ("op", "versions", "status", "kernels", "dtypes", "note", "alternative")


@dataclass(frozen=True, slots=True)
class Built:
    """One table: its rows, and where each version was read."""

    rows: tuple[OplistEntry, ...]
    releases: Mapping[str, Shipped]

    def table(self) -> str:
        """The rows as CSV. Columns that no row uses are left out."""
        used = [c for c in COLUMNS if c == "op" or any(value(r, c) for r in self.rows)]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(used)
        writer.writerows([value(row, column) for column in used] for row in self.rows)
        return out.getvalue()

    def versions(self) -> str:
        """The `versions` part of operators.yaml."""
        lines = ["versions:"]
        for version, shipped in self.releases.items():
            one = shipped.release
            lines.append(
                f'  "{version}": {{source: "{one.source}", commit: "{one.commit}", '
                f'date: "{one.date}"}}'
            )
        return "\n".join(lines) + "\n"


def value(row: OplistEntry, column: str) -> str:
    """One cell."""
    if column == "op":
        name = row.name.removeprefix("aten::")
        return f"{name}.{row.overload}" if row.overload else name
    found = getattr(row, column)
    return " ".join(found) if isinstance(found, tuple) else str(found)


def build(shipped: Sequence[Shipped], namespace: str, more: Iterable[OplistEntry] = ()) -> Built:
    """One table of several releases; `more` adds kernels, notes and replacements by name.

    The first release of a version is called `2.6`, later ones by their full name (`2.6.0.post3`).
    An operator whose status differs between releases gets a row for each status.
    """
    releases: dict[str, Shipped] = {}
    for one in sorted(shipped, key=lambda s: release_key(s.full or s.release.version)):
        short = one.release.version
        later = short in releases and one.full != releases[short].full
        releases[one.full if later else short] = one
    seen: dict[tuple[str, str, str, str], list[str]] = {}
    for version, one in releases.items():
        for entry in entries_of(one, namespace):
            key = (entry.name, entry.overload or "", entry.status, entry.note)
            seen.setdefault(key, []).append(version)
    known = {(e.name, e.overload or ""): e for e in more}
    rows = []
    for (name, overload, status, note), versions in seen.items():
        extra = known.get((name, overload))
        rows.append(
            OplistEntry(
                name=name,
                overload=overload,
                status=status,
                kernels=extra.kernels if extra and not status else (),
                dtypes=extra.dtypes if extra and not status else (),
                note="; ".join(p for p in (note, extra.note if extra else "") if p),
                alternative=extra.alternative if extra else "",
                versions=span_of(versions, releases),
            )
        )
    rows.sort(key=lambda row: (row.name, row.overload or "", row.status))
    return Built(tuple(rows), releases)


def head(known: Entries, chip: Chip, built: Built) -> str:
    """`operators.yaml` beside the table. What only the chip's data knows is named, not copied."""
    lines = [
        f"# Operators of {chip.name}, read from its torch package by joymigrate oplist build.",
        "schema: joymigrate.operators/1",
        f'default: "{max(built.releases, key=version_key)}"',
        f"namespaces: [{', '.join(known.namespaces)}]",
        "table: operators.csv",
        "meta:",
        f"  chip: {chip.name}",
        f"  fallback: {known.fallback or ('cpu' if chip.cpu_fallback else 'error')}",
    ]
    if known.package is not None:
        lines += [
            "package:",
            f"  distribution: {known.package.distribution}",
            f"  list: {known.package.list}",
        ]
        lines += [f"  version: {known.package.version}"] if known.package.version else []
    return "\n".join(lines) + "\n" + built.versions()
