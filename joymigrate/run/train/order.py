"""The order of samples: a permutation per epoch that needs no memory and no state.

A run's position is one number, how many samples were consumed. Which sample stands at a position
depends on the seed and the data's size alone, never on the number of processes, so a run can go on
with more or fewer of them and still see every sample once per epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
ROUNDS = 4  # of the Feistel network; four give a pseudo-random permutation (Luby and Rackoff, 1988)


@dataclass(frozen=True, slots=True)
class Order:
    """Sample numbers by position; epochs follow each other without a gap."""

    size: int
    seed: int = 0
    shuffle: bool = True

    def at(self, start: int, count: int) -> Ints:
        """The samples at positions `start … start + count - 1`."""
        positions = np.arange(start, start + count, dtype=np.int64)
        epochs, inside = np.divmod(positions, self.size)
        if not self.shuffle:
            return inside
        found = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            mine = epochs == epoch
            found[mine] = permute(inside[mine], self.size, self.seed, int(epoch))
        return found

    def share(self, start: int, count: int, rank: int, ranks: int) -> Ints:
        """The part of a batch that one data rank sees."""
        part = count // ranks
        return self.at(start + rank * part, part)


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
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014); wraps around at 64 bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Bits = values ^ (values >> np.uint64(31))
    return found
