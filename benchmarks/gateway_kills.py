"""Gateways that share a rollout, killed with -9 at any time: is evidence lost, is a decision split?

    python -m benchmarks.gateway_kills --rounds 20

Three processes share one rollout over a redis-server of this program and tell it what they serve,
100 requests a second each. Each round kills one at a random moment and starts another. At the end
all that live, and a fresh one, must hold the same state, and of each killed process the state must
count what it had told a second before its end. In the last rounds one of them tells failures, so
that the standby is rolled back while somebody dies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joymigrate.run.serve.evidence.events import (
    PRIMARY,
    SECOND,
    Health,
    LedgerGate,
    RolloutPlan,
    Served,
)
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway.redis_rollout import SharedRollout

GATEWAYS = 3
EVERY_SECONDS = 0.01
LOST_SECONDS = 1.0
ROUND_SECONDS, SETTLE_SECONDS = 12.0, 4.0
PLAN = RolloutPlan(min_step_seconds=3600, min_step_pairs=0)


def nothing(said: Any) -> None:
    """Changes and lines that nobody reads."""


async def gateway(url: str, until: float, failing: bool) -> None:
    """One gateway: a line of JSON for each request that it told `until` then, and its state."""
    rollout = Rollout(PLAN)
    shared = SharedRollout(url, "kills", rollout, {"plan": "kills"}, nothing, nothing)
    await shared.start()
    shared.put(LedgerGate(time.time(), True, "test"))
    shared.put(Health(time.time(), SECOND, True))
    shared.put(Health(time.time(), PRIMARY, True))
    told, longest = 0, 0.0
    while time.time() < until:
        before = time.monotonic()
        shared.put(Served(time.time(), SECOND, "reset" if failing else None))
        told += 1
        print(json.dumps([time.monotonic(), told, longest]), flush=True)
        await asyncio.sleep(EVERY_SECONDS)
        longest = max(longest, time.monotonic() - before)
    await asyncio.sleep(SETTLE_SECONDS)
    end = {
        "requests": rollout.total.requests,
        "failures": rollout.total.failures,
        "state": rollout.state,
        "weight": rollout.weight,
        "decisions": [one.kind for one in rollout.changes if one.kind not in ("gate", "health")],
    }
    print(json.dumps(end), flush=True)
    await shared.close()


def start(url: str, until: float, failing: bool, folder: Path, number: int) -> Any:
    """A process of it, and the file that it tells into."""
    told = folder / f"{number}.jsonl"
    line = [sys.executable, "-m", "benchmarks.gateway_kills", "--one", url, str(until)]
    with told.open("w") as output:
        return subprocess.Popen([*line, *(["--failing"] if failing else [])], stdout=output), told


def rows(told: Path) -> list[Any]:
    """What a process told, without a line that its end cut."""
    found = []
    for line in told.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def one_round(url: str, folder: Path, rng: random.Random, failing: bool) -> dict[str, Any]:
    """Three gateways, of which one is killed and another comes."""
    until = time.time() + ROUND_SECONDS
    running = [
        start(url, until, failing and place == 0, folder, place) for place in range(GATEWAYS)
    ]
    while not all(rows(told) for _, told in running):
        if any(process.poll() is not None for process, _ in running):
            raise SystemExit("a gateway ended by itself")
        time.sleep(0.05)
    time.sleep(rng.uniform(0.0, 3.0))
    victim, said = running.pop(rng.randrange(GATEWAYS))
    victim.kill()
    at = time.monotonic()
    victim.wait()
    running.append(start(url, until, False, folder, GATEWAYS))
    for process, _ in running:
        process.wait(120)
    ends = [rows(told)[-1] for _, told in running]
    kept = sum(len(rows(told)) - 1 for _, told in running)
    early = max((row[1] for row in rows(said) if row[0] < at - LOST_SECONDS), default=0)
    all_told = kept + rows(said)[-1][1]
    longest = max(row[2] for _, told in running for row in rows(told)[:-1])
    counted = ends[0]["requests"]
    if any(end != ends[0] for end in ends):
        print(ends, flush=True)
    return {"told": all_told, "counted": counted, "missing": all_told - counted,
            "lost": max(0, kept + early - counted), "same": all(end == ends[0] for end in ends),
            "state": ends[0]["state"], "stood_still_s": round(longest, 2)}  # fmt: skip


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--failing", action="store_true")
    asked = parser.parse_args(given)
    if asked.one:
        asyncio.run(gateway(asked.one[0], float(asked.one[1]), asked.failing))
        return 0
    redis = shutil.which("redis-server")
    if redis is None:
        raise SystemExit("redis-server is not installed")
    rng, bad = random.Random(asked.seed), 0
    for number in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            port = free_port()
            line = [
                redis,
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                folder,
            ]
            server = subprocess.Popen([*line, "--appendonly", "yes"], stdout=subprocess.DEVNULL)
            try:
                time.sleep(0.5)
                failing = number >= asked.rounds * 3 // 4
                found = one_round(f"redis://127.0.0.1:{port}/0", Path(folder), rng, failing)
            finally:
                server.kill()
                server.wait()
        bad += found["lost"] > 0 or not found["same"]
        print(json.dumps(found), flush=True)
    print(f"{bad} of {asked.rounds} rounds lost evidence older than a second, or decided twice")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
