"""The sign of each row of a sketch: one fixed sequence, the same on every machine. numpy only."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

WIDTH = 64  # floats of a sketch
SEED = 20240607


@lru_cache(maxsize=1)
def _known(rows: int) -> NDArray[np.float32]:
    bits = np.random.Generator(np.random.PCG64(SEED)).integers(0, 2, rows, dtype=np.int8)
    return (bits * 2 - 1).astype(np.float32)


def signs(rows: int, start: int = 0) -> NDArray[np.float32]:
    """+1 or -1 for the global rows `start … start + rows`.

    The sequence depends on the row's global number alone, so that sketches of shards add up.
    """
    size = 1 << max(16, (start + rows - 1).bit_length())
    return _known(size)[start : start + rows]
