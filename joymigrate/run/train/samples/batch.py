"""Rows as arrays: ids per feature with their lengths, numbers, labels. B rows, N ids in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class JaggedIds:
    """Lists of ids, one after another: values int64 [N], offsets int64 [B + 1] from 0."""

    values: Array
    offsets: Array

    @property
    def lengths(self) -> Array:
        """Ids of every row [B]."""
        return np.diff(self.offsets)

    def part(self, first: int, last: int) -> JaggedIds:
        """Rows `first … last - 1`, without a copy."""
        offsets = self.offsets[first : last + 1]
        return JaggedIds(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def ranges(starts: Array, counts: Array) -> Array:
    """`starts[0] … starts[0] + counts[0] - 1, starts[1] …` as one array."""
    total = int(counts.sum())
    if not total:
        return np.empty(0, dtype=np.int64)
    before = np.cumsum(counts) - counts
    found: Array = np.repeat(starts - before, counts) + np.arange(total)
    return found


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Some rows. `skipped` counts the rows left out on the way, by reason; `read` all of them."""

    ids: Mapping[str, Array]  # [B] of features with one id per row
    lists: Mapping[str, JaggedIds]  # bags and sequences
    numbers: Array  # [B, G] float32
    labels: Array  # [B, T] float32
    groups: Array | None = None  # [B] int64
    times: Array | None = None  # [B] float64
    read: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    fate: Array | None = None  # [read] where rows are missing: 0 is here, else its reason from 1
    reasons: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, first: int, last: int) -> SampleBatch:
        """The rows that were the `first … last - 1` of those read."""
        read, fate, skipped = last - first, None, dict[str, int]()
        if self.fate is not None:
            fate = self.fate[first:last]
            counts = np.bincount(fate, minlength=len(self.reasons) + 1)[1:].tolist()
            skipped = {r: n for r, n in zip(self.reasons, counts, strict=True) if n}
            kept = np.concatenate([[0], np.cumsum(self.fate == 0)])
            first, last = int(kept[first]), int(kept[last])
        made = self.rows(lambda values: values[first:last], lambda lists: lists.part(first, last))
        return replace(made, read=read, skipped=skipped, fate=fate, reasons=self.reasons)

    def rows(
        self, of_array: Callable[[Array], Array], of_lists: Callable[[JaggedIds], JaggedIds]
    ) -> SampleBatch:
        """Some rows: every column by `of_array`, every list by `of_lists`."""
        return SampleBatch(
            ids={name: of_array(values) for name, values in self.ids.items()},
            lists={name: of_lists(one) for name, one in self.lists.items()},
            numbers=of_array(self.numbers),
            labels=of_array(self.labels),
            groups=None if self.groups is None else of_array(self.groups),
            times=None if self.times is None else of_array(self.times),
        )


def join_batches(parts: Sequence[SampleBatch]) -> SampleBatch:
    """Several batches as one."""
    if len(parts) == 1:
        return replace(parts[0], fate=None)
    first = parts[0]
    return SampleBatch(
        ids={name: np.concatenate([one.ids[name] for one in parts]) for name in first.ids},
        lists={name: joined_lists([one.lists[name] for one in parts]) for name in first.lists},
        numbers=np.concatenate([one.numbers for one in parts]),
        labels=np.concatenate([one.labels for one in parts]),
        groups=None if first.groups is None else np.concatenate([p.groups for p in parts]),
        times=None if first.times is None else np.concatenate([p.times for p in parts]),
        read=sum(one.read for one in parts),
        skipped=total([one.skipped for one in parts]),
    )


def joined_lists(parts: Sequence[JaggedIds]) -> JaggedIds:
    """Lists of several batches."""
    lengths = np.concatenate([one.lengths for one in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return JaggedIds(np.concatenate([one.values for one in parts]), offsets)


def total(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Counts by reason, added up."""
    found: dict[str, int] = {}
    for one in counts:
        for reason, number in one.items():
            found[reason] = found.get(reason, 0) + number
    return found
