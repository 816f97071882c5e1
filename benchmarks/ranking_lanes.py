"""Throughput and p99 over lanes and batch sizes of a ranking model.

    python -m benchmarks.ranking_lanes din.pt2 --lanes 1,2,4 --batch 1,4,16 --kind threads,processes

Every lane is kept busy: twice as many clients as fit, each with one request at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.run.serve.ranking import trial
from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lane_count import CANDIDATES, LENGTH, threads_for
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.program import RankingProgram
from joymigrate.run.serve.ranking.program import load as load_program
from joymigrate.run.serve.ranking.request import RankingRequest


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
    program: RankingProgram,
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
    program: RankingProgram,
    kind: str,
    lanes: int,
    batch: int,
    requests: Sequence[RankingRequest],
    seconds: float,
    alone: str,
) -> Row:
    """One setting."""
    engine = RankingEngine(
        program, lanes=lanes, limits=BatchLimits(1.0, batch), queue=4096, alone=alone, kind=kind
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
    engine: RankingEngine, requests: Sequence[RankingRequest], clients: int, seconds: float
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--lanes", default="1,2,4")
    parser.add_argument("--batch", default="1,4,16")
    parser.add_argument("--kind", default="threads")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    program = load_program(given.model, given.device)
    freedom = trial.find_freedom(program)
    program.signature = freedom.signature
    lanes, batches = (list(map(int, one.split(","))) for one in (given.lanes, given.batch))
    print(text(bench(program, lanes, batches, given.kind.split(","), given.seconds, freedom.alone)))


if __name__ == "__main__":
    main()
