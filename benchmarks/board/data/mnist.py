"""MNIST in its own format, of made digits: mnist.py ROOT [TRAINING TEST]."""

import struct
import sys
from pathlib import Path

import numpy as np


def main(root: str, training: str = "512", test: str = "128") -> None:
    """Ten patterns with noise; the file names and headers are the data set's own."""
    raw = Path(root) / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    patterns = noise.integers(0, 2, (10, 28, 28)) * 180
    for name, count in (("train", int(training)), ("t10k", int(test))):
        labels = noise.integers(0, 10, count).astype(np.uint8)
        pixels = (patterns[labels] + noise.integers(0, 70, (count, 28, 28))).astype(np.uint8)
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = struct.pack(">II", 2049, count)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


main(*sys.argv[1:])
