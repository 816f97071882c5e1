"""Operators of a program that not every release of the chip's package has a kernel for.

A rehearsal runs one release. Where the chip's machine has another one, an operator may run on the
CPU there, be taken apart by torch, or be missing: the chip's own list says which releases have it.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from joymigrate.chips import rules_root
from joymigrate.chips.names import release_key
from joymigrate.language import tell

LIST = Path("ops") / "operators.csv"
SHOWN = 5


@cache
def releases(path: Path) -> Mapping[str, str]:
    """Operator → the releases that have it ("2.1.0.post8-2.1,2.3.1.post2-"), where not all do."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["op"] if "::" in row["op"] else f"aten::{row['op']}": row["versions"]
            for row in csv.DictReader(file)
            if row["versions"] and row["status"] != "layout"
        }


def newest(versions: str) -> tuple[int, ...]:
    """Since when all later releases have it; a range that has ended sorts last."""
    *_, last = versions.split(",")
    return release_key(last.removesuffix("-")) if last.endswith("-") else (99,)


def some_releases(
    chip: str, records: Iterable[Mapping[str, Any]], fallbacks: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The operators that ran here by a kernel which other releases lack, youngest kernel first."""
    known = releases(rules_root() / chip / LIST)
    calls: Counter[str] = Counter()
    for record in records:
        calls.update(record["calls"])
    away = {row["op"] for row in fallbacks}
    rows = [
        {"op": name, "calls": number, "releases": known[name]}
        for name, number in calls.items()
        if name in known and name not in away
    ]
    return sorted(rows, key=lambda row: (newest(row["releases"]), row["op"]), reverse=True)


def release_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The youngest of them in one line."""
    if not rows:
        return []
    shown = ", ".join(f"{row['op']} ({row['releases'].replace(',', ', ')})" for row in rows[:SHOWN])
    if len(rows) > SHOWN:
        shown += " " + tell("… and {number} more", number=len(rows) - SHOWN)
    said = tell(
        "not in every release of the package: {number} operator{number_s}: {shown}",
        number=len(rows),
        shown=shown,
    )
    return [f"  {said}"]
