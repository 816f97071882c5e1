"""First values of rows: uniform, and a function of table, id and column alone.

Two layouts, two devices or two runs that meet an id in another order start from the same row; a row
that was evicted and comes back starts from it again. The bits are SplitMix64 (Steele, Lea, Flood:
Fast splittable pseudorandom number generators, OOPSLA 2014), whose output step is a bijection.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)


def mix(words: Words) -> Words:
    """SplitMix64's output function, element by element."""
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed


def hash_ids(ids: Ids, seed: int = 0) -> Words:
    """64 well mixed bits of each id."""
    start = np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    return mix(ids.view(np.uint64) + mix(start + GOLDEN))


def uniform(words: Words) -> Floats:
    """Numbers in [0, 1) from the upper 24 bits, which float32 holds exactly."""
    numbers: Floats = (words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    return numbers


@dataclass(frozen=True, slots=True)
class UniformRows:
    """Rows of a table: numbers in [low, high). `first_column` is that of a slice of columns."""

    table: str
    columns: int
    low: float
    high: float
    seed: int = 0
    first_column: int = 0

    def rows(self, ids: Ids) -> Floats:
        """The first values of `ids` [n]: [n, columns]."""
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        keys = hash_ids(ids, self.seed ^ zlib.crc32(self.table.encode()))
        numbers = np.arange(self.first_column + 1, self.first_column + self.columns + 1)
        words = mix(keys[:, None] + numbers.astype(np.uint64) * GOLDEN)
        rows: Floats = np.float32(self.low) + uniform(words) * np.float32(self.high - self.low)
        return rows
