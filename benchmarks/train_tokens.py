"""How much faster a run starts when its token cache is there, and what the cache takes.

    python benchmarks/train_tokens.py --megabytes 8

The first start tokenises with the built-in byte tokenizer, the second opens the cache; both read a
row. Bytes are those of the text and of the cache: a cache of tokens is no smaller than text by
itself, and this says so.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from joymigrate.run.train import build, packing, tokenizer
from joymigrate.run.train.tasks import TaskContext, find
from joymigrate.run.train.tokens import open_cache

WORDS = [f"word{number}" for number in range(5000)]


def write(path: Path, megabytes: float) -> None:
    """Lines of words up to a size."""
    draw = random.Random(0)
    with path.open("w") as file:
        while file.tell() < megabytes * 2**20:
            file.write(json.dumps({"text": " ".join(draw.choices(WORDS, k=60))}) + "\n")


def start(path: Path, folder: Path) -> tuple[float, int]:
    """Seconds until the first row is read, and bytes of the cache."""
    task = find("pretrain")(TaskContext(tokenizer=tokenizer.byte_level()))
    recipe = build.Recipe((path,), task.fields(), task.identity(), task.encode)
    started = time.perf_counter()
    cache = open_cache(folder, recipe)
    packing.PackedStream(cache, 512)[0]
    return time.perf_counter() - started, cache.bytes


def main() -> None:
    """Print both starts and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=8)
    options = parser.parse_args()
    tokenizer.digest(tokenizer.byte_level())  # libraries load outside of both measurements
    with tempfile.TemporaryDirectory() as name:
        path, folder = Path(name) / "text.jsonl", Path(name) / "cache"
        write(path, options.megabytes)
        first, size = start(path, folder)
        second = min(start(path, folder)[0] for _ in range(5))
        text = path.stat().st_size
    print(f"first start {first:.2f} s, second {second * 1e3:.2f} ms: {first / second:,.0f} x")
    print(f"text {text / 1e6:.1f} MB, cache {size / 1e6:.1f} MB: {size / text:.2f} x")
    print(json.dumps({"ratio": first / second, "bytes_ratio": size / text}))


if __name__ == "__main__":
    main()
