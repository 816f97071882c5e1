"""Tables of embeddings: the cache's hit rate, the price of a hit, what the pipeline hides, peers.

    python benchmarks/tables.py [cache] [hit] [pipeline]
    python benchmarks/tables.py torchrec --peer /venv/with/torchrec/bin/python

Each part prints its figure and the one it is held to. Run it on an idle machine; ratios are of two
runs in this process, or (torchrec) of two programs one after the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

IDS, LOOKUPS, SIZE = 1_000_000, 81_920, 64


def zipf(random: np.random.Generator, exponent: float, count: int, ids: int = IDS) -> np.ndarray:
    """Ids in [0, ids) with probability ~ 1 / rank^exponent, ranks spread over the ids."""
    weights = np.arange(1, ids + 1, dtype=np.float64) ** -exponent
    edges = np.cumsum(weights / weights.sum())
    ranks = np.searchsorted(edges, random.random(count)).clip(max=ids - 1)
    return ranks * 611_953 % ids  # prime to a million: another order, the same ids


def cache() -> None:
    """Share of distinct ids of a batch that are in a cache of 10 %."""
    from joymigrate.run.train.tables import RowOptimiser, TableOptions
    from joymigrate.run.train.tables.table import Table
    from joymigrate.run.train.tables.table_shape import TableShape

    random = np.random.default_rng(0)
    table = Table(TableShape("t", 4, IDS), RowOptimiser(), TableOptions(cache_rows=IDS // 10))
    batches = 200  # the second half counts
    for number in range(batches):
        if number == batches // 2:
            table.tier.figures.hits = table.tier.figures.misses = 0
        ids, counts = np.unique(zipf(random, 1.05, LOOKUPS), return_counts=True)
        ticket = table.prepare(ids, counts)
        table.bring(ticket)
        table.release(ticket)
    print(
        f"hit rate, Zipf 1.05, {IDS:,} ids, cache of 10 %: {table.tier.figures.rate:.3f} (>= 0.60)"
    )


def best(act, times: int = 15) -> float:
    """The shortest of some calls, in ms."""
    act()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        found.append(time.perf_counter() - start)
    return 1e3 * min(found)


def hit() -> None:
    """A batch whose rows are all in the cache, against torch's EmbeddingBag on the same ids."""
    import torch

    from joymigrate.run.train.tables import (
        EmbeddingBagCollection,
        EmbeddingBagConfig,
        KeyedJaggedTensor,
        RowOptimiser,
        TableOptions,
    )

    random = np.random.default_rng(0)
    rows = 100_000
    ids = torch.from_numpy(zipf(random, 1.05, LOOKUPS, rows))
    lengths = torch.full((LOOKUPS // 20,), 20)
    offsets = torch.arange(0, LOOKUPS + 1, 20)
    batch = KeyedJaggedTensor(["f"], ids, lengths=lengths)
    ebc = EmbeddingBagCollection(
        [EmbeddingBagConfig(rows, SIZE, "t", feature_names=["f"])],
        optimiser=RowOptimiser("sgd", lr=0.1), options=TableOptions(cache_rows=rows),
    )  # fmt: skip
    plain = torch.nn.EmbeddingBag(rows, SIZE, mode="sum", include_last_offset=True, sparse=True)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)

    def train_plain() -> None:
        sgd.zero_grad()
        plain(ids, offsets).sum().backward()
        sgd.step()

    def train_ours() -> None:
        ebc(batch).values().sum().backward()

    def look_ours() -> None:
        with torch.no_grad():
            ebc(batch)

    def look_plain() -> None:
        with torch.no_grad():
            plain(ids, offsets)

    for name, ours, theirs in (
        ("forward", look_ours, look_plain),
        ("forward, backward, update", train_ours, train_plain),
    ):
        train_ours()
        one, other = best(ours), best(theirs)
        print(f"cost of a hit, {name}: {one:.2f} ms / {other:.2f} ms = {one / other:.2f}x (<= 1.3)")


def pipeline() -> None:
    """Steps with an injected latency of the store equal to the compute."""
    import torch
    from torch import nn

    from joymigrate.run.train.tables import (
        EmbeddingBagCollection,
        EmbeddingBagConfig,
        KeyedJaggedTensor,
        RowOptimiser,
        TableOptions,
        TablePipeline,
    )

    wait_s, steps = 0.05, 30

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ebc = EmbeddingBagCollection(
                [EmbeddingBagConfig(IDS, 16, "t", feature_names=["f"])],
                optimiser=RowOptimiser("adagrad", lr=0.1),
                options=TableOptions(cache_rows=20_000),
            )
            self.top = nn.Linear(16, 1)

        def forward(self, batch):
            time.sleep(wait_s)  # the compute of a device, which leaves the host free
            loss = self.top(self.ebc(batch).values()).square().mean()
            return loss, loss.detach()

    def run(synchronous: bool) -> tuple[float, list[float]]:
        torch.manual_seed(0)
        model = Model()
        store = model.ebc.table("t").tier.store
        read = store.read

        def slow(*arguments):
            time.sleep(wait_s)
            return read(*arguments)

        store.read = slow
        bring = model.ebc.table("t").tier.first

        def first(ids):
            time.sleep(wait_s)
            return bring(ids)

        model.ebc.table("t").tier.first = first  # new rows cost as much as those of the store
        random = np.random.default_rng(0)
        lengths = torch.full((64,), 10)
        batches = iter(
            [
                KeyedJaggedTensor(
                    ["f"], torch.from_numpy(random.integers(0, IDS, 640)), lengths=lengths
                )
                for _ in range(steps)
            ]
        )
        runner = TablePipeline(
            model, torch.optim.SGD(model.top.parameters(), 0.1), synchronous=synchronous
        )
        start, losses = time.perf_counter(), []
        while True:
            try:
                losses.append(float(runner.progress(batches)))
            except StopIteration:
                return time.perf_counter() - start, losses

    (alone, want), (hidden, got) = run(True), run(False)
    print(
        f"pipeline, fetch latency = compute: {alone / hidden:.2f}x over synchronous (>= 1.6), "
        f"largest difference {max(abs(a - b) for a, b in zip(want, got, strict=True))}"
    )


def torchrec(peer: str, turns: int = 3) -> None:
    """The same DLRM on two processes, by turns with each library.

    Of each the best run: samples/s, and the processors' time of a step of both processes, which
    other programs on the machine disturb less.
    """
    program = str(Path(__file__).parent / "tables_dlrm.py")
    found: dict[str, list[list[str]]] = {"joymigrate": [], "torchrec": []}
    for _ in range(turns):
        for name, python in (("joymigrate", sys.executable), ("torchrec", peer)):
            done = subprocess.run(
                [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
                 program, name],
                capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"{name}: {done.stderr[-2000:]}")
            found[name].append(done.stdout.strip().splitlines()[-1].split())
    rates, times = (
        {name: best(float(words[at]) for words in runs) for name, runs in found.items()}
        for at, best in ((0, max), (2, min))
    )
    for name, runs in found.items():
        print(f"{name}: {rates[name]:.0f} samples/s, {times[name]:.1f} ms, loss {runs[0][1]}")
    pairs = [float(a[0]) / float(b[0]) for a, b in zip(*found.values(), strict=True)]
    print(
        f"samples/s against torchrec: {rates['joymigrate'] / rates['torchrec']:.2f}x (>= 1.0), "
        f"turn by turn {', '.join(f'{ratio:.2f}' for ratio in pairs)}; "
        f"processors' time {times['joymigrate'] / times['torchrec']:.2f}x"
    )
    sent, unique = found["joymigrate"][0][3:]
    print(f"bytes sent by bytes without removing: {sent} (<= unique ratio {unique} + 0.05)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["cache", "hit", "pipeline"])
    parser.add_argument("--peer", help="a Python that has torchrec and fbgemm-gpu-cpu")
    options = parser.parse_args()
    for part in options.parts:
        if part == "torchrec":
            torchrec(options.peer or sys.exit("torchrec needs --peer PYTHON"))
        else:
            {"cache": cache, "hit": hit, "pipeline": pipeline}[part]()


if __name__ == "__main__":
    main()
