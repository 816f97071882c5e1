"""Ranking under load: p99 at 80 %, killed compilers, weights that change, shards that are lost.

    python -m benchmarks.ranking_load [--seconds 20] [--kills 20] [--updates 60] [--only NAME]

One process, no HTTP: requests go into the engine's queue. Every part prints the ratio to its own
base in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ranking_example as example
from joymigrate.run.serve.ranking import packages, trial
from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.meters import compilations
from joymigrate.run.serve.ranking.packages import Packages
from joymigrate.run.serve.ranking.program import RankingProgram, load, take_tables_out
from joymigrate.run.serve.ranking.remote import Shards
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.train.formats import versions as published

CANDIDATES, LENGTH = 5, 20


def engine_of(program: RankingProgram, requests: int = 128) -> RankingEngine:
    """An engine that runs, its cost model fitted."""
    engine = RankingEngine(program, limits=BatchLimits(0.025, requests), queue=100_000)
    trial.fit(engine)
    engine.start()
    return engine


def asked(engine: RankingEngine) -> list[Any]:
    """Requests of one size."""
    return [draw(engine.program.signature, CANDIDATES, LENGTH, seed) for seed in range(50)]


async def open_loop(
    engine: RankingEngine, rate: float, seconds: float, check: Callable[[Any], bool] | None = None
) -> tuple[list[float], int, int]:
    """Poisson arrivals: sorted milliseconds, failures, and answers that `check` refuses."""
    chance = random.Random(0)
    requests, times, tasks = asked(engine), [], []
    failed = wrong = 0

    async def one(place: int) -> None:
        nonlocal failed, wrong
        began = time.perf_counter()
        try:
            found = await engine.rank(requests[place % len(requests)])
            wrong += check is not None and not check(found)
        except Exception:
            failed += 1
        times.append(1e3 * (time.perf_counter() - began))

    end = due = time.perf_counter()
    end += seconds
    place = 0
    while due < end:
        due += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(place)))
        place += 1
    await asyncio.gather(*tasks)
    return sorted(times), failed, wrong


def at(times: list[float], share: float) -> float:
    """A quantile."""
    return times[min(len(times) - 1, int(share * len(times)))]


def capacity(engine: RankingEngine) -> float:
    """Requests a second one after the other."""
    run = [one.arrays for one in asked(engine)]
    for arrays in run:
        engine.program.run(arrays)
    began = time.perf_counter()
    for _ in range(4):
        for arrays in run:
            engine.program.run(arrays)
    return 4 * len(run) / (time.perf_counter() - began)


def tail(path: Path, seconds: float) -> None:
    """p99 at 80 % of the unbatched capacity, merged and alone."""
    program = load(path)
    alone, merged = engine_of(program, 1), engine_of(program)
    rate = 0.8 * capacity(alone)
    rows = {}
    for name, engine in (("alone", alone), ("merged", merged), ("alone again", alone)):
        times, failed, _ = asyncio.run(open_loop(engine, rate, seconds))
        rows[name] = at(times, 0.99)
        print(f"80 % load ({rate:.0f}/s), {name}: p50 {at(times, 0.5):.1f} ms, "
              f"p99 {rows[name]:.1f} ms, {failed} failed")  # fmt: skip
    print(f"p99 merged / alone: {rows['merged'] / rows['alone']:.2f}, "
          f"{rows['merged'] / rows['alone again']:.2f}")  # fmt: skip
    alone.close()
    merged.close()


def compiling(path: Path, seconds: float, kills: int) -> None:
    """p99 while a compiler runs beside, and compilers that are killed."""
    engine = engine_of(load(path))
    rate = 0.2 * capacity(engine)
    idle, failed, _ = asyncio.run(open_loop(engine, rate, seconds))
    before = compilations()
    with tempfile.TemporaryDirectory() as folder:
        background = Packages(engine, Path(folder))
        background.start()
        while background.state == "off":
            time.sleep(0.01)
        busy, lost, _ = asyncio.run(open_loop(engine, rate, seconds))
        state = background.state
        background.stop()
    slower = at(busy, 0.99) / at(idle, 0.99)
    print(
        f"20 % load: p99 {at(idle, 0.99):.1f} ms idle, {at(busy, 0.99):.1f} ms while compiling "
        f"(at the end: {state}): {slower:.2f}x; p50 {at(idle, 0.5):.1f}, {at(busy, 0.5):.1f} ms; "
        f"failed {failed}, {lost}; compilations here {compilations() - before:.0f}"
    )
    packages.TRIES, packages.WAIT_SECONDS = kills + 1, 0.0
    with tempfile.TemporaryDirectory() as folder:
        background = Packages(engine, Path(folder))
        killed: set[int] = set()
        ended = threading.Event()

        def kill() -> None:
            chance = random.Random(1)
            while len(killed) < kills:
                process = background.process
                if process is not None and process.pid not in killed and process.poll() is None:
                    time.sleep(chance.uniform(0.05, 1.5))
                    os.kill(process.pid, signal.SIGKILL)
                    killed.add(process.pid)
                time.sleep(0.01)
            ended.set()

        background.start()
        threading.Thread(target=kill, daemon=True).start()
        failures = count = 0
        while not ended.is_set():
            times, failed, _ = asyncio.run(open_loop(engine, rate, 1.0))
            failures, count = failures + failed, count + len(times)
        background.stop()
    print(f"compiler killed {len(killed)} times: {failures} of {count} requests failed")
    engine.close()


class Balance(torch.nn.Module):
    """0 while table and dense weight are of one version."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.item = torch.nn.Embedding(rows, 16)
        self.level = torch.nn.Parameter(torch.zeros(1))
        torch.nn.init.zeros_(self.item.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.item(ids).mean(-1) - self.level


def publish(folder: Path, number: int, rows: int) -> None:
    """One version in which every row and the dense weight are its number."""
    store = published.FolderVersions(folder)
    content = {
        "dense.safetensors": published.pack({"level": torch.full((1,), float(number))}),
        "table.item.safetensors": published.pack({
            "ids": torch.arange(rows), "rows": torch.full((rows, 16), float(number)),
            "removed": torch.zeros(0, dtype=torch.int64),
        }),
    }  # fmt: skip
    described = published.describe(content)
    form = "snapshot" if number == 1 else "delta"
    before = "snapshot" if number == 2 else "delta"
    previous = store.manifest(number - 1, before)["identity"] if number > 1 else ""
    store.publish({
        "schema": "joymigrate.version/1", "version": number, "form": form,
        "identity": published.identity(previous, described), "previous": previous or None,
        "time": time.time(), "files": described, "newest_event": time.time(),
        "tables": {"item": {"file": "table.item.safetensors", "dim": 16, "dtype": "float32",
                            "ids": rows, "removed": 0, "rows": rows, "initial": {"name": "zero"}}},
    }, content)  # fmt: skip


def publishing(place: Path, rows: int) -> None:
    """A version a second, until this process is killed."""
    torch.set_num_threads(1)
    number = 1
    while True:
        time.sleep(1.0)
        number += 1
        publish(place, number, rows)


def updating(seconds: float, rows: int = 20_000) -> None:
    """Deltas at 1/s under load: mixed versions, and p99 beside no deltas."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JOYMIGRATE_CACHE"] = folder
        given = {"ids": torch.zeros(4, dtype=torch.long)}
        free = {"ids": {0: torch.export.Dim("count")}}
        made = torch.export.export(Balance(rows), (), kwargs=given, dynamic_shapes=free)
        path = Path(folder) / "balance.pt2"
        torch.export.save(made, path)
        place = Path(folder) / "published"
        publish(place, 1, rows)
        engine = engine_of(load(path))
        following = Versions(engine, str(place), poll_seconds=0.1)
        following.start()
        quiet, failed, wrong = asyncio.run(open_loop(engine, 200, min(seconds, 20), whole))
        # A trainer is another process: in this one it would take the interpreter from the lanes.
        trainer = multiprocessing.get_context("spawn").Process(
            target=publishing, args=(place, rows), daemon=True
        )
        trainer.start()
        while following.number < 2:
            time.sleep(0.1)
        busy, more_failed, more_wrong = asyncio.run(open_loop(engine, 200, seconds, whole))
        trainer.kill()
        trainer.join()
        following.stop()
        engine.close()
        print(f"deltas of {rows} rows at 1/s for {seconds:.0f} s, 200 requests/s: "
              f"{following.applied - 1} versions, {wrong + more_wrong} mixed and "
              f"{failed + more_failed} failed of {len(quiet) + len(busy)} requests, "
              f"p99 {at(quiet, 0.99):.2f} -> {at(busy, 0.99):.2f} ms "
              f"({at(busy, 0.99) / at(quiet, 0.99):.2f}x)")  # fmt: skip


def losing(path: Path, turns: int = 3) -> None:
    """A shard is killed, and one is stopped: how long until requests get what was declared."""
    for what, sign in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        for how in ("default", "error"):
            delays, longest = [], []
            for turn in range(turns):
                delay, slowest = asyncio.run(lose(path, sign, how, 18600 + turn))
                delays.append(delay)
                longest.append(slowest)
            print(
                f"shard {what}, {how}: declared after {max(delays):.0f} ms at most (<= 100), "
                f"slowest request {max(longest):.0f} ms; {len(delays)} times", flush=True
            )  # fmt: skip


async def lose(path: Path, sign: int, how: str, port: int) -> tuple[float, float]:
    """Milliseconds from the loss of the only shard to the declared answer; the slowest request."""
    start = [sys.executable, "-W", "ignore", "-m", "joymigrate", "serve", str(path)]
    server = subprocess.Popen([*start, "--part", "sparse", "--shard", "0/1", "--port", str(port)],
                              stderr=subprocess.DEVNULL)  # fmt: skip
    shards = Shards([[f"http://127.0.0.1:{port}"]])
    try:
        shards.start(120)
        program = load(path)
        take_tables_out(program, shards, how)
        engine = RankingEngine(program)
        engine.start()
        request = asked(engine)[0]
        for _ in range(20):
            assert not (await engine.rank(request)).degraded
        slowest, lost = 0.0, time.perf_counter()
        os.kill(server.pid, sign)
        declared = False
        while not declared:
            began = time.perf_counter()
            try:
                declared = bool((await engine.rank(request)).degraded)
            except HttpRefusal as refusal:
                declared = refusal.status == 503
            slowest = max(slowest, time.perf_counter() - began)
        delay = time.perf_counter() - lost
        engine.close()
    finally:
        shards.stop()
        server.kill()
        server.wait()
    return 1e3 * delay, 1e3 * slowest


def whole(found: Any) -> bool:
    """Whether an answer is of one version."""
    return bool(np.all(found.outputs[0] == 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--updates", type=float, default=60.0, help="seconds of deltas")
    parser.add_argument("--only", choices=("tail", "compiling", "updating", "losing"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = example.export(Path(tempfile.mkdtemp()) / "din.pt2")
    if options.only in (None, "tail"):
        tail(path, options.seconds)
    if options.only in (None, "compiling"):
        compiling(path, options.seconds, options.kills)
    if options.only in (None, "updating"):
        updating(options.updates)
    if options.only in (None, "losing"):
        losing(path)


if __name__ == "__main__":
    main()
