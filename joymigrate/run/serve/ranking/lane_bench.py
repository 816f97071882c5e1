"""Throughput and p99 over lanes and batch sizes, and the best number of lanes here."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from joymigrate import processors
from joymigrate.run.serve.ranking.batcher import Limits
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import Engine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.program import Program
from joymigrate.run.serve.ranking.request import Request

log = logging.getLogger("joymigrate.serve")
SCHEMA = "joymigrate.lanes/1"
CANDIDATES, LENGTH, REQUESTS = 8, 32, 3  # of the request, and of the batch, that is timed
GAIN = 1.1  # more lanes are taken for a tenth more requests a second
TRY_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Row:
    """One measured setting."""

    kind: str
    lanes: int
    batch: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    merged: float  # requests of a batch, mean


def bench(
    program: Program,
    lanes: Sequence[int],
    batches: Sequence[int],
    kinds: Sequence[str],
    seconds: float,
    alone: str = "",
) -> list[Row]:
    """Measure every setting: twice as many clients as fit, each with one request at a time."""
    requests = [draw(program.signature, CANDIDATES, LENGTH, seed) for seed in range(64)]
    rows = []
    for kind in kinds:
        for count in lanes:
            with threads_for(count):
                for batch in batches:
                    rows.append(one(program, kind, count, batch, requests, seconds, alone))
    return rows


def one(
    program: Program,
    kind: str,
    lanes: int,
    batch: int,
    requests: Sequence[Request],
    seconds: float,
    alone: str,
) -> Row:
    """One setting."""
    engine = Engine(
        program, lanes=lanes, limits=Limits(1.0, batch), queue=4096, alone=alone, kind=kind
    )
    engine.start()
    try:
        times = asyncio.run(load(engine, requests, 2 * lanes * batch, seconds))
        merged = engine.counts.requests / max(1, engine.counts.batches)
    finally:
        engine.close()
    times.sort()
    return Row(
        kind, lanes, batch, round(len(times) / seconds, 1),
        round(1e3 * times[len(times) // 2], 2), round(1e3 * times[len(times) * 99 // 100], 2),
        round(merged, 2),
    )  # fmt: skip


async def load(
    engine: Engine, requests: Sequence[Request], clients: int, seconds: float
) -> list[float]:
    """Seconds of each request that ended in time; the first tenth of the time warms up."""
    await asyncio.gather(*(engine.rank(one) for one in requests[:4]))
    begin = time.perf_counter() + seconds / 10
    end = begin + seconds
    times: list[float] = []

    async def client(number: int) -> None:
        turn = number
        while time.perf_counter() < end:
            began = time.perf_counter()
            await engine.rank(requests[turn % len(requests)])
            now = time.perf_counter()
            turn += clients
            if begin <= now <= end:
                times.append(now - began)

    await asyncio.gather(*(client(number) for number in range(clients)))
    return times or [0.0]


class threads_for:
    """torch's threads divided among lanes, as they were afterwards."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def __enter__(self) -> None:
        import torch

        self.before = torch.get_num_threads()
        torch.set_num_threads(max(1, self.before // self.lanes))

    def __exit__(self, *error: object) -> None:
        import torch

        torch.set_num_threads(self.before)


def choose(program: Program, alone: str = "", most: int | None = None) -> int:
    """How many lanes (threads) answer most requests here; more only where they gain a tenth."""
    cores = most or processors.available()
    counts = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    if len(counts) == 1:
        return 1
    many = 1 if alone else REQUESTS
    requests = [draw(program.signature, CANDIDATES, LENGTH, seed) for seed in range(many)]
    batch = merge(program.signature, requests)
    best, chosen = 0.0, 1
    said = []
    for count in counts:
        with threads_for(count):
            rate = rate_of(program, batch.arrays, count)
        said.append(f"{count}: {many * rate:.0f}/s")
        if rate > GAIN * best:
            best, chosen = rate, count
    log.info("lanes: %d (%s)", chosen, ", ".join(said))
    return chosen


def rate_of(program: Program, arrays: dict[str, Any], lanes: int) -> float:
    """Batches a second of so many threads."""
    done = [0] * lanes
    program.run(arrays)
    end = time.perf_counter() + TRY_SECONDS

    def lane(place: int) -> None:
        while time.perf_counter() < end:
            program.run(arrays)
            done[place] += 1

    threads = [threading.Thread(target=lane, args=(place,)) for place in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / TRY_SECONDS


def document(rows: Sequence[Row], model: str, device: str) -> dict[str, Any]:
    """`joymigrate.lanes/1`."""
    return {
        "schema": SCHEMA,
        "model": model,
        "device": device,
        "cores": processors.available(),
        "candidates": CANDIDATES,
        "length": LENGTH,
        "rows": [asdict(row) for row in rows],
    }


def text(rows: Sequence[Row]) -> str:
    """A table for people, the fastest setting named below."""
    lines = [f"{'kind':<10}{'lanes':>6}{'batch':>6}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}"
             f"{'merged':>8}"]  # fmt: skip
    lines += [
        f"{row.kind:<10}{row.lanes:>6}{row.batch:>6}{row.requests_per_s:>12.1f}{row.p50_ms:>9.2f}"
        f"{row.p99_ms:>9.2f}{row.merged:>8.2f}" for row in rows
    ]  # fmt: skip
    best = max(rows, key=lambda row: row.requests_per_s)
    lines.append(f"Most requests: {best.lanes} {best.kind}, batches of up to {best.batch}.")
    return "\n".join(lines)
