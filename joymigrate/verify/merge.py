"""Several ranks as one: sketches of shards, of partial sums and of parts of a batch add up.

Which part a process has stands after the word: "shard 0,35". With two kinds of parallelism at once
several processes have the same part, which counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from joymigrate.verify.bundle import Rank, RecordTable
from joymigrate.verify.bundle.table import COLUMNS

ADDED = ("shard", "partial", "batch")


def merge_ranks(ranks: Sequence[Rank], step: int) -> RecordTable:
    """One table of a step; of what every rank holds whole, the first rank's counts."""
    first = ranks[0].table(step)
    others = [rank.table(step) for rank in ranks[1:] if step in rank.steps]
    first = add_parts(first, others)
    if not any(first.spread):
        return first
    stats, sketch = first.stats.astype(np.float64), first.sketch.astype(np.float64)
    squares = stats[:, 3] ** 2
    parts = np.ones(len(first))
    for row, key in enumerate(first.keys()):
        kind = first.spread[row].partition(" ")[0]
        if kind not in ADDED:
            continue
        blocks = {first.spread[row]}
        for other in others:
            there = other.place(key)
            if there is None or other.spread[there] == "copy":
                continue
            if other.spread[there] in blocks and " " in other.spread[there]:
                continue  # another process has the same part
            blocks.add(other.spread[there])
            sketch[row] += other.sketch[there]
            stats[row, 0] = max(stats[row, 0], float(other.stats[there, 0]))
            stats[row, 1] = min(stats[row, 1], float(other.stats[there, 1]))
            stats[row, 2] += float(other.stats[there, 2])
            squares[row] += float(other.stats[there, 3]) ** 2
            parts[row] += 1
            if kind == "partial":
                stats[row], squares[row] = np.nan, np.nan  # of partial sums nothing is known
    stats[:, 2] /= parts
    stats[:, 3] = np.sqrt(squares)
    return RecordTable(
        step,
        first.module,
        first.call,
        first.kind,
        first.leaf,
        first.dtype,
        first.shape,
        [""] * len(first),
        stats.astype(np.float32),
        sketch.astype(np.float32),
    )


def add_parts(first: RecordTable, others: Sequence[RecordTable]) -> RecordTable:
    """The first process's table with parts of tensors of which it holds nothing."""
    known, found = set(first.keys()), []
    for other in others:
        for row, key in enumerate(other.keys()):
            if key not in known and other.spread[row].partition(" ")[0] in ADDED:
                known.add(key)
                found.append((other, row))
    if not found:
        return first
    columns: dict[str, Any] = {
        name: [*getattr(first, name), *(getattr(table, name)[row] for table, row in found)]
        for name in COLUMNS
    }
    for name in ("stats", "sketch"):
        parts = [getattr(first, name), *(getattr(t, name)[[row]] for t, row in found)]
        columns[name] = np.concatenate(parts)
    return RecordTable(first.step, **columns)
