"""Calls that run on a chip's own CPU, by the dtype of their first tensor: `ops/kernel_aicpu.csv`.

Facts, recorded per kernel and model with their source: what the vendor's published host code
launches.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

COLUMNS = ("kernel", "models", "dtypes", "slow", "source")


@dataclass(frozen=True, slots=True)
class SlowKernel:
    """One kernel on some models: `slow` names what runs on the chip's CPU for these dtypes."""

    kernel: str
    models: frozenset[str]
    dtypes: frozenset[str]
    slow: tuple[str, ...]
    source: str


@cache
def read_slow(path: Path) -> tuple[SlowKernel, ...]:
    """The rows of a table; none where the chip has no such file."""
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            SlowKernel(
                row["kernel"], frozenset(row["models"].split()), frozenset(row["dtypes"].split()),
                tuple(row["slow"].split()), row["source"],
            )
            for row in csv.DictReader(file)
        )  # fmt: skip


def slow_for(rows: Iterable[SlowKernel], model: str) -> dict[tuple[str, str], SlowKernel]:
    """By kernel and dtype of its first tensor, what runs on the CPU of one model."""
    return {(row.kernel, dtype): row for row in rows if model in row.models for dtype in row.dtypes}


def table_of(rows: Iterable[SlowKernel]) -> str:
    """Rows as a CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(
            [row.kernel, " ".join(sorted(row.models)), " ".join(sorted(row.dtypes)),
             " ".join(row.slow), row.source]
        )  # fmt: skip
    return text.getvalue()
