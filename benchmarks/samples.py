"""The sample engine: rows/s against pyarrow and a DataLoader by hand, and bytes of histories.

    python benchmarks/samples.py [speed] [bytes]

`speed` reads the same Parquet files by turns: hashed, bucketed, crossed, padded, as tensors, in the
order of the files; then shuffled, and with histories from the store. Ratios are of the best turns;
those of the processor's time are what other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import yaml
from pandas.util import hash_array
from pyarrow import parquet

from joymigrate.run.train.samples import readers, schema
from joymigrate.run.train.samples.generate import Clicks, generate
from joymigrate.run.train.samples.lookup import collate

BATCH, LENGTH, TURNS = 4096, 100, 9


class ByHand(torch.utils.data.IterableDataset):
    """What a user writes: batches of pyarrow, numpy, and a loop over the lists of a batch."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for path in self.files:
            for batch in parquet.ParquetFile(path).iter_batches(BATCH):
                yield self.tensors(batch)

    def tensors(self, batch) -> dict[str, torch.Tensor]:
        lists = batch.column("clicked")
        values = lists.flatten().to_numpy()
        edges = lists.offsets.to_numpy() - lists.offsets[0].as_py()
        mask = np.arange(LENGTH) < np.diff(edges)[:, None]
        events = np.zeros(mask.shape, dtype=np.int64)
        events[mask] = values  # at most LENGTH in a row
        texts = batch.column("brand").to_numpy(zero_copy_only=False)
        brands = hash_array(texts, categorize=True) % 1000
        hours = np.searchsorted([6, 12, 18], batch.column("hour").to_numpy(), side="right")
        crossed = (brands * np.uint64(31) + hours.astype(np.uint64)) % np.uint64(4000)
        found = {
            "user": batch.column("user_id").to_numpy(), "item": batch.column("item_id").to_numpy(),
            "brand": brands.astype(np.int64), "hour": hours, "cross": crossed.astype(np.int64),
            "price": np.log1p(batch.column("price").to_numpy()), "events": events, "mask": mask,
            "label": batch.column("click").to_numpy(),
        }  # fmt: skip
        return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in found.items()}


def engine(features: Path, files: list[Path], *, shuffle: bool = False) -> int:
    """The rows of all files as tensors, by two reading threads."""
    known = schema.load(features)
    rows = readers.parquet_rows(files, known, shuffle=shuffle)
    threads = readers.start_readers("threads", 2)
    count = 0
    for batch in threads.stream(rows, rows.order.pieces([(0, rows.order.rows)], 0)):
        for at in range(0, len(batch), BATCH):
            part = batch.part(at, min(len(batch), at + BATCH))
            count += len(collate(known, part)["labels"])
    threads.close()
    return count


def by_hand(files: list[Path]) -> int:
    """The same by torch.utils.data."""
    loader = torch.utils.data.DataLoader(ByHand(files), batch_size=None)
    return sum(len(batch["label"]) for batch in loader)


def speed(folder: Path) -> None:
    """Rows/s of the three."""
    generate(folder, Clicks(length=LENGTH), denormalised=True)
    stored = sorted(folder.glob("clicks-*.parquet"))
    written = sorted((folder / "denormalised").glob("clicks-*.parquet"))
    document = yaml.safe_load((folder / "features.yaml").read_text())
    del document["histories"], document["features"]["clicked"]["history"]
    (folder / "denormalised" / "features.yaml").write_text(yaml.safe_dump(document))
    runs: dict[str, Callable[[], int]] = {
        "engine": lambda: engine(folder / "denormalised" / "features.yaml", written),
        "by hand": lambda: by_hand(written),
        "engine, shuffled": lambda: engine(
            folder / "denormalised" / "features.yaml", written, shuffle=True
        ),
        "engine, histories from the store": lambda: engine(folder / "features.yaml", stored),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    used: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            start, busy = time.perf_counter(), time.process_time()
            rows = run()
            rates[name].append(rows / (time.perf_counter() - start))
            used[name].append(1e6 * (time.process_time() - busy) / rows)
    for name, found in rates.items():
        print(f"{name}: {max(found):,.0f} rows/s, {min(used[name]):.2f} us of processor a row")
    best = {name: max(found) / max(rates["by hand"]) for name, found in rates.items()}
    pairs = sorted(a / b for a, b in zip(rates["engine"], rates["by hand"], strict=True))
    print(
        f"the same files: {best['engine']:.2f}x by hand (>= 1.0), median of {TURNS} turns "
        f"{pairs[TURNS // 2]:.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f}); rows by processor's time "
        f"{min(used['by hand']) / min(used['engine']):.2f}x; shuffled "
        f"{best['engine, shuffled']:.2f}x, stitched "
        f"{best['engine, histories from the store']:.2f}x"
    )


def sizes(folder: Path) -> None:
    """Bytes on the disk, histories stored once and in every row."""
    for length, rows, users in ((100, 40_000, 400), (1000, 40_000, 400)):
        place = folder / str(length)
        wish = Clicks(rows=rows, users=users, history=length, length=length)
        found = generate(place, wish, denormalised=True)
        once = found["rows"] + found["histories"]
        print(
            f"histories of {length}, {rows // users} rows a user: {once / 1e6:.2f} MB against "
            f"{found['denormalised'] / 1e6:.2f} MB, {1 - once / found['denormalised']:.1%} less "
            "(>= 90 %)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["speed", "bytes"])
    for part in parser.parse_args().parts:
        with tempfile.TemporaryDirectory() as folder:
            {"speed": speed, "bytes": sizes}[part](Path(folder))


if __name__ == "__main__":
    main()
