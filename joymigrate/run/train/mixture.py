"""The order of samples of several sources in shares: which source stands at a position, by chance.

The draw at a position depends on seed and position alone, so it needs no state; how many samples
of a source came before a position is counted from the draws. Each source goes through its own
samples as `SampleOrder` does, pass after pass.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from joymigrate.run.train.order import Ints, SampleOrder, mix_bits

CHUNK = 1 << 18  # positions that are counted at once


class MixedOrder:
    """Sample numbers by position; those of a source begin behind those of the sources before it.

    `until` says how many positions an epoch is: as many as it takes until the first source, all
    of them, or the largest was seen whole.
    """

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float], seed: int, until: str
    ) -> None:
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.seed, self.until = seed, until
        self.firsts = np.cumsum(self.sizes) - self.sizes
        self.borders = np.cumsum(np.asarray(weights, dtype=np.float64))
        self.borders /= self.borders[-1]
        self.parts = [SampleOrder(size, seed + number) for number, size in enumerate(sizes)]
        self.lock = threading.Lock()  # the feed counts ahead while the loop counts for its figures
        self.known = [np.zeros(len(sizes), dtype=np.int64)]  # counts before every chunk
        self.size = self.whole()

    def sources(self, start: int, count: int) -> Ints:
        """Which source stands at each of `count` positions."""
        salt = np.uint64((self.seed * 0x9E3779B97F4A7C15 + 0xA5A5A5A5) % (1 << 64))
        places = np.arange(start, start + count, dtype=np.uint64)
        draws = mix_bits(mix_bits(places) ^ salt) >> np.uint64(11)
        found = np.searchsorted(self.borders, draws.astype(np.float64) / (1 << 53), side="right")
        return np.asarray(np.minimum(found, len(self.sizes) - 1), dtype=np.int64)

    def counts(self, position: int) -> Ints:
        """How many samples of each source stand before a position."""
        whole, rest = divmod(position, CHUNK)
        with self.lock:
            while len(self.known) <= whole:
                drawn = self.sources((len(self.known) - 1) * CHUNK, CHUNK)
                self.known.append(self.known[-1] + self.tally(drawn))
        return self.known[whole] + self.tally(self.sources(whole * CHUNK, rest))

    def tally(self, drawn: Ints) -> npt.NDArray[np.int64]:
        """How often each source was drawn."""
        return np.bincount(drawn, minlength=len(self.sizes)).astype(np.int64)

    def at(self, start: int, count: int) -> Ints:
        """The samples at positions `start … start + count - 1`."""
        drawn, before = self.sources(start, count), self.counts(start)
        found = np.empty(count, dtype=np.int64)
        for number, part in enumerate(self.parts):
            mine = drawn == number
            found[mine] = part.at(int(before[number]), int(mine.sum())) + self.firsts[number]
        return found

    def whole(self) -> int:
        """Positions of an epoch."""
        chunk, ends = 0, np.zeros(len(self.sizes), dtype=np.int64)  # 0: not seen whole yet
        while not self.is_over(ends):
            before, drawn = self.counts(chunk * CHUNK), self.sources(chunk * CHUNK, CHUNK)
            for number in np.flatnonzero(ends == 0):
                left = int(self.sizes[number] - before[number])
                places = np.flatnonzero(drawn == number)
                if left <= len(places):
                    ends[number] = chunk * CHUNK + int(places[left - 1]) + 1
            chunk += 1
        if self.until == "largest":
            return int(ends[self.sizes.argmax()])
        return int(ends[ends > 0].min() if self.until == "first" else ends.max())

    def is_over(self, ends: Ints) -> bool:
        """Whether an epoch ends, with the positions at which sources were seen whole."""
        if self.until == "largest":
            return bool(ends[self.sizes.argmax()])
        return bool(ends.any() if self.until == "first" else ends.all())

    def epoch(self, position: int) -> int:
        """How many epochs end at a position or before it."""
        return position // self.size
