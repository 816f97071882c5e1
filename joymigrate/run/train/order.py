"""The order of samples: a permutation per epoch that needs no memory and no state.

A run's position is one number, how many samples were consumed. Which sample stands at a position
depends on the seed and the data's size alone, never on the number of processes, so a run can go on
with more or fewer of them and still see every sample once per epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joymigrate.run.train.formats.first_rows import GOLDEN, mix

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
ROUNDS = 4  # of the Feistel network; four give a pseudo-random permutation (Luby and Rackoff, 1988)


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions from `begin` to before `end` (none: for ever) that go through the same samples.

    These are `first … first + size - 1`, pass after pass; a pass began at `origin`.
    """

    begin: int
    end: int | None
    origin: int
    first: int
    size: int
    epoch: int

    def moved(self, begin: int, by: int) -> Segment:
        """What stands from `begin` on, `by` positions further back."""
        end = None if self.end is None else self.end + by
        return replace(self, begin=begin + by, end=end, origin=self.origin + by)


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """Sample numbers by position; epochs follow each other without a gap.

    `growth` says at which positions the data had grown to how many samples: what was added comes
    at that position, then the rest of the pass in which it came, so that each sample is seen once.
    """

    size: int
    seed: int = 0
    shuffle: bool = True
    growth: tuple[tuple[int, int], ...] = ()

    def at(self, start: int, count: int) -> Ints:
        """The samples at positions `start … start + count - 1`."""
        found = np.empty(count, dtype=np.int64)
        for part in self.segments():
            begin = max(start, part.begin)
            end = start + count if part.end is None else min(start + count, part.end)
            if begin < end:
                found[begin - start : end - start] = self.inside(part, begin, end)
        return found

    def inside(self, part: Segment, begin: int, end: int) -> Ints:
        """The samples at some positions of one segment."""
        passes, places = np.divmod(np.arange(begin - part.origin, end - part.origin), part.size)
        if self.shuffle:
            for number in np.unique(passes):
                mine = passes == number
                epoch = part.epoch + int(number)
                places[mine] = permute(places[mine], part.size, self.seed, epoch)
        return np.asarray(places + part.first, dtype=np.int64)

    def epoch(self, position: int) -> int:
        """How many passes over the samples end at a position or before it."""
        part = next(
            one for one in self.segments() if not one.first and (one.end or math.inf) > position
        )
        return part.epoch + max(0, position - part.origin) // part.size

    def segments(self) -> list[Segment]:
        """All positions, in their order."""
        known = [Segment(0, None, 0, 0, self.size, 0)]
        for position, size in self.growth:
            known = grow(known, position, size)
        return known


def grow(known: Sequence[Segment], position: int, size: int) -> list[Segment]:
    """The segments once the data have grown to `size` samples at a position."""
    *before, tail = known
    begun = -(-(position - tail.origin) // tail.size)  # passes that began before the position
    if begun > 0:
        end = tail.origin + begun * tail.size
        before.append(replace(tail, end=end))
        tail = replace(tail, begin=end, origin=end, epoch=tail.epoch + begun)
    added = size - tail.size
    if position == tail.begin:
        return [*before, replace(tail, size=size)]
    new = Segment(position, position + added, position, tail.size, added, tail.epoch)
    seen = [replace(one, end=min(one.end or position, position)) for one in before]
    rest = [
        one.moved(max(one.begin, position), added) for one in before if (one.end or 0) > position
    ]
    return [*(one for one in seen if one.begin < position), new, *rest,
            replace(tail.moved(tail.begin, added), size=size)]  # fmt: skip


def permute(values: Ints, size: int, seed: int, epoch: int) -> Ints:
    """Where a permutation of `0 … size - 1` sends `values`.

    A Feistel network permutes the next power of four; values that leave the range go through it
    again until they are back ("cycle walking"), which keeps it a permutation.
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    found = values.astype(np.uint64)
    outside = np.ones(len(found), dtype=bool)
    while outside.any():
        found[outside] = feistel(found[outside], half, seed, epoch)
        outside &= found >= size
    return found.astype(np.int64)


def feistel(values: Bits, half: int, seed: int, epoch: int) -> Bits:
    """One pass over `2 * half` bits."""
    mask = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & mask
    for turn in range(ROUNDS):
        salt = np.uint64(
            (seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03 + turn) % (1 << 64)
        )
        left, right = right, left ^ (mix_bits(right ^ salt) & mask)
    found: Bits = (left << np.uint64(half)) | right
    return found


def mix_bits(values: Bits) -> Bits:
    """SplitMix64's first number from each of `values` as its state."""
    return mix(values + GOLDEN)
