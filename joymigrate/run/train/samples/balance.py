"""Spreads the rows of a step over processes by their work, not by their number.

Rows with sequences of different lengths make processes wait for the one with the longest. Here the
lengths of a step's rows are gathered, every process computes the same assignment, and the rows go
to their places by one all-to-all of bytes, over a process group of its own (the training's must not
be used from the thread that reads ahead). A loss that is a sum over rows does not change.

Work of a row with n events: n (5 D + n / 2) counts products and sums of a layer of HSTU, in units
of 4 D: the projections take 5 D² each event (U, V, Q, K and the output), the two products of causal
attention n² D / 2 each.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from joymigrate.run.train.samples.batch import (
    Array,
    JaggedIds,
    SampleBatch,
    join_batches,
    ranges,
)
from joymigrate.run.train.samples.schema import FeatureSchema

Work = Callable[[SampleBatch], Array]


def workload(schema: FeatureSchema) -> Work:
    """The work of every row of a batch [B], from the lengths of its sequences."""
    sequences = [(name, schema.features[name].length) for name in schema.sequences()]

    def work(batch: SampleBatch) -> Array:
        total = np.ones(len(batch))
        for name, most in sequences:
            count = np.minimum(batch.lists[name].lengths, most).astype(np.float64)
            total += count * (5 * schema.dim + count / 2)
        return total

    return work


def assign(work: Array, places: int) -> list[list[int]]:
    """Rows by place: the largest first, each to the place with least work so far (LPT).

    The largest sum is at most 4/3 of the best possible one (Graham, 1969). Rows of a place keep
    their order. Ties go to the lower place: every process finds the same.
    """
    chosen: list[list[int]] = [[] for _ in range(places)]
    sums = [(0.0, place) for place in range(places)]
    for row in np.argsort(-work, kind="stable").tolist():
        total, place = heapq.heappop(sums)
        chosen[place].append(row)
        heapq.heappush(sums, (total + float(work[row]), place))
    return [sorted(rows) for rows in chosen]


def imbalance(sums: Array) -> float:
    """How much longer the slowest place works than the mean: 0 is even."""
    mean = float(sums.mean())
    return float(sums.max()) / mean - 1.0 if mean > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Balanced:
    """This process's rows, the most rows of a process, and the imbalance before and after."""

    batch: SampleBatch
    most: int
    before: float
    after: float


@dataclass
class Balancer:
    """Exchanges the rows of steps; made by all processes together."""

    rank: int
    ranks: int
    work: Work
    group: Any = field(default=None)

    def __post_init__(self) -> None:
        if self.ranks > 1 and self.group is None:
            import torch.distributed as dist

            self.group = dist.new_group(backend="gloo")

    def exchange(self, batch: SampleBatch) -> Balanced:
        """The rows that this process works on; all processes call it for the same step."""
        mine = self.work(batch)
        everyone = [np.asarray(one) for one in self.gather(mine)]
        every = np.concatenate(everyone)
        edges = np.cumsum([0, *(len(one) for one in everyone)])
        before = np.array([one.sum() for one in everyone])
        places = assign(every, self.ranks)
        after = np.array([every[rows].sum() for rows in places])
        first, last = edges[self.rank], edges[self.rank + 1]
        outgoing = [
            pick_rows(batch, np.array([row - first for row in rows if first <= row < last], int))
            for rows in places
        ]
        arrived = self.swap(outgoing)
        made = join_batches([one for one in arrived if len(one)] or arrived[:1])
        most = max(map(len, places))
        return Balanced(made, most, imbalance(before), imbalance(after))

    def gather(self, mine: Array) -> list[Any]:
        """What every process has."""
        if self.ranks == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, mine, group=self.group)
        return found

    def swap(self, outgoing: list[SampleBatch]) -> list[SampleBatch]:
        """One batch to every process, one from each."""
        if self.ranks == 1:
            return outgoing
        import torch
        import torch.distributed as dist

        parts = [np.frombuffer(pickle.dumps(one), np.uint8) for one in outgoing]
        sizes = torch.tensor([len(part) for part in parts])
        coming = torch.empty_like(sizes)
        dist.all_to_all_single(coming, sizes, group=self.group)
        sent = torch.from_numpy(np.concatenate(parts))
        got = torch.empty(int(coming.sum()), dtype=torch.uint8)
        dist.all_to_all_single(got, sent, coming.tolist(), sizes.tolist(), group=self.group)
        # The bytes come from processes of this run.
        return [pickle.loads(part.numpy().tobytes()) for part in torch.split(got, coming.tolist())]


def pick_rows(batch: SampleBatch, rows: Array) -> SampleBatch:
    """Some rows of a batch, in the order given."""
    picked = batch.rows(lambda values: values[rows], lambda lists: picked_lists(lists, rows))
    return replace(picked, read=len(rows))


def picked_lists(lists: JaggedIds, rows: Array) -> JaggedIds:
    """Some lists."""
    counts = lists.lengths[rows]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return JaggedIds(lists.values[ranges(lists.offsets[:-1][rows], counts)], offsets)
