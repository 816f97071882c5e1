"""Where a run stands in its rows, exactly: which row ranges of an epoch nobody has read yet.

An epoch is an order of row groups; its rows are numbered in that order. The rows left are split
into one contiguous share per reader. A run that goes on with more or fewer readers splits what is
left again: every row is read once, whatever happened before. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joymigrate.run.train.order import permute

Range = tuple[int, int]
Share = tuple[Range, ...]


def rows_in(share: Sequence[Range]) -> int:
    """Rows of ranges."""
    return sum(last - first for first, last in share)


def split(left: Sequence[Range], readers: int) -> tuple[Share, ...]:
    """The rows left as one contiguous share per reader; shares differ by one row at most."""
    total = rows_in(left)
    rest = list(left)
    shares = []
    for reader in range(readers):
        wanted = total // readers + (reader < total % readers)
        mine, rest = taken_off(rest, wanted)
        shares.append(mine)
    return tuple(shares)


def taken_off(left: Sequence[Range], count: int) -> tuple[Share, list[Range]]:
    """The first `count` rows of ranges, and the others."""
    mine: list[Range] = []
    rest = list(left)
    while count > 0 and rest:
        first, last = rest.pop(0)
        cut = min(last, first + count)
        mine.append((first, cut))
        count -= cut - first
        if cut < last:
            rest.insert(0, (cut, last))
    return tuple(mine), rest


@dataclass(frozen=True, slots=True)
class RowPosition:
    """`consumed` rows of all epochs; in this one, the ranges that each reader has before it."""

    epoch: int
    consumed: int
    shares: tuple[Share, ...]

    def for_readers(self, readers: int) -> RowPosition:
        """The same rows left, over another number of readers."""
        if readers == len(self.shares):
            return self
        left = sorted(one for share in self.shares for one in share)
        return RowPosition(self.epoch, self.consumed, split(left, readers))

    def step(self, each: int, rows: int) -> tuple[tuple[Share, ...], RowPosition]:
        """What every reader reads in a step of `each` rows, and the position behind it.

        The last step of an epoch is smaller; the next epoch has `rows` rows again.
        """
        taken, left = [], []
        for share in self.shares:
            mine, rest = taken_off(share, each)
            taken.append(mine)
            left.append(tuple(rest))
        consumed = self.consumed + sum(map(rows_in, taken))
        if any(left):
            return tuple(taken), RowPosition(self.epoch, consumed, tuple(left))
        return tuple(taken), begin(rows, len(left), self.epoch + 1, consumed)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        shares = [[list(one) for one in share] for share in self.shares]
        return {"epoch": self.epoch, "consumed": self.consumed, "left": shares}


def begin(rows: int, readers: int, epoch: int = 0, consumed: int = 0) -> RowPosition:
    """The start of an epoch."""
    return RowPosition(epoch, consumed, split([(0, rows)], readers))


def position_of(document: Mapping[str, Any]) -> RowPosition:
    """A position from JSON."""
    shares = tuple(tuple((a, b) for a, b in share) for share in document["left"])
    return RowPosition(document["epoch"], document["consumed"], shares)


@dataclass(frozen=True, slots=True)
class RowGroupPiece:
    """Rows `first … last - 1` of a row group, in the group's own order of this epoch."""

    group: int
    first: int
    last: int
    epoch: int


class EpochOrder:
    """Row groups in the order of an epoch, and the rows in each of them."""

    def __init__(self, sizes: Sequence[int], seed: int = 0, *, shuffle: bool = True) -> None:
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.seed, self.shuffle = seed, shuffle

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return int(self.sizes.sum())

    def groups(self, epoch: int) -> Any:
        """Row groups in their order."""
        numbers = np.arange(len(self.sizes), dtype=np.int64)
        return permute(numbers, len(numbers), self.seed, epoch) if self.shuffle else numbers

    def pieces(self, share: Sequence[Range], epoch: int) -> list[RowGroupPiece]:
        """What to read for row ranges of an epoch, in order."""
        groups = self.groups(epoch)
        ends = np.cumsum(self.sizes[groups])
        found = []
        for first, last in share:
            at = int(np.searchsorted(ends, first, "right"))
            while first < last:
                start = int(ends[at] - self.sizes[groups[at]])
                stop = min(last, int(ends[at]))
                found.append(RowGroupPiece(int(groups[at]), first - start, stop - start, epoch))
                first, at = stop, at + 1
        return found

    def rows_of(self, piece: RowGroupPiece) -> Any:
        """The numbers of a piece's rows in their group."""
        numbers = np.arange(piece.first, piece.last, dtype=np.int64)
        if not self.shuffle:
            return numbers
        size = int(self.sizes[piece.group])
        salt = self.seed * 0x100000001B3 + piece.group + 1
        return permute(numbers, size, salt, piece.epoch)
