"""MovieLens 1M's ratings.dat, of made ratings: ratings.py FILE [ROWS]."""

import sys
from pathlib import Path

import numpy as np


def main(path: str, rows: str = "4000") -> None:
    """User, item, rating and time, as the data set separates them; no header."""
    noise = np.random.default_rng(0)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{noise.integers(1, 200)}::{noise.integers(1, 300)}::{noise.integers(1, 6)}::97830{n:04}"
        for n in range(int(rows))
    ]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


main(*sys.argv[1:])
