"""Several ranks as one: sketches of shards, of partial sums and of parts of a batch add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joymigrate.verify.bundle import Rank, Table

ADDED = ("shard", "partial", "batch")


def merge_ranks(ranks: Sequence[Rank], step: int) -> Table:
    """One table of a step; of what every rank holds whole, the first rank's counts."""
    first = ranks[0].table(step)
    if len(ranks) == 1 or not any(first.spread):
        return first
    others = [rank.table(step) for rank in ranks[1:] if step in rank.steps]
    stats, sketch = first.stats.astype(np.float64), first.sketch.astype(np.float64)
    squares = stats[:, 3] ** 2
    parts = np.ones(len(first))
    for row, key in enumerate(first.keys()):
        if first.spread[row] not in ADDED:
            continue
        for other in others:
            there = other.place(key)
            if there is None or other.spread[there] == "copy":
                continue
            sketch[row] += other.sketch[there]
            stats[row, 0] = max(stats[row, 0], float(other.stats[there, 0]))
            stats[row, 1] = min(stats[row, 1], float(other.stats[there, 1]))
            stats[row, 2] += float(other.stats[there, 2])
            squares[row] += float(other.stats[there, 3]) ** 2
            parts[row] += 1
            if first.spread[row] == "partial":
                stats[row], squares[row] = np.nan, np.nan  # of partial sums nothing is known
    stats[:, 2] /= parts
    stats[:, 3] = np.sqrt(squares)
    return Table(
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
