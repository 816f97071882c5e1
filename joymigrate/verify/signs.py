"""The sign of each row of a sketch: one fixed sequence, the same on every machine. numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WIDTH = 64  # floats of a sketch
SEED = 20240607


_known: dict[type, NDArray[np.floating]] = {}  # as many as were needed so far, by type


def signs(rows: int, start: int = 0, dtype: type[np.floating] = np.float32) -> NDArray[np.floating]:
    """+1 or -1 for the global rows `start … start + rows`.

    The sequence depends on the row's global number alone, so that sketches of shards add up.
    """
    known = _known.get(dtype)
    if known is None or known.size < start + rows:
        size = 1 << max(16, (start + rows - 1).bit_length())
        bits = np.random.Generator(np.random.PCG64(SEED)).integers(0, 2, size, dtype=np.int8)
        known = _known[dtype] = (bits * 2 - 1).astype(dtype)
    return known[start : start + rows]
