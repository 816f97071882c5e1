"""Four command lines that change one Ray cluster at once, and are killed at will.

Each submits, cancels and looks at random; jobs end by themselves, fail, or are stopped for higher
priorities. Every pod locks a file per card that it was given, until its process is gone: a second
one on the same card writes down what it saw. JOYMIGRATE_STRESS_S says for how many seconds (60).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="pip install 'joymigrate[cluster]'")

from tests.run.cluster.test_ray import Fleet

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("JOYMIGRATE_STRESS_S", "60"))
LINES = 4
STATES = {"waiting", "running", "done", "failed", "cancelled"}
QUEUES: list[dict[str, Any]] = [
    {"name": "owner", "min": 8, "max": 14, "eviction": ["lower-priority", "over-deserved"]},
    {"name": "guest", "min": 0, "max": 12, "eviction": ["lower-priority", "over-deserved"]},
]
# One node per kind, so that a pod knows by its job's kind which node it is on.
NODES = (
    ("o", "ascend-910-8", "l0", {"resources": {"NPU": 8}}),
    ("g", "gpu-8", "l0", {"num_gpus": 8}),
)
SIZES = {"ascend-910-8": (1, 2, 4, 8), "gpu-8": (1, 2, 3, 5, 8)}

POD = """
import fcntl, os, sys, time
folder, kind, seconds, code = sys.argv[1:]
name = "CUDA_VISIBLE_DEVICES" if kind == "gpu-8" else "ASCEND_RT_VISIBLE_DEVICES"
files = []
for card in os.environ[name].split(","):
    files.append(open(f"{folder}/{kind}.{card}", "a+"))
    try:
        fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        open(f"{folder}/twice", "a").write(f"{os.environ['JOYMIGRATE_JOB']} {kind} {card}\\n")
time.sleep(float(seconds))
sys.exit(int(code))
"""


def command_line(address: str, folder: Path, number: int) -> None:
    """Change the cluster at random until killed; what was acknowledged is in a file."""
    from joymigrate.errors import JoyError
    from joymigrate.run.cluster import jobs
    from joymigrate.run.cluster.on_ray import connect

    chance = random.Random(f"{number} {time.time()}")
    ray = connect.attach(address)
    captain = connect.ControllerClient(ray)
    told = open(folder / f"told.{number}", "a", buffering=1)  # noqa: SIM115
    for turn in range(1_000_000):
        what = chance.random()
        try:
            if what < 0.5:
                new = [drawn(chance, folder, f"{number}-{os.getpid()}-{turn}")]
                captain.ask("submit", jobs.from_data({"jobs": new}).jobs)
                told.write(f"{new[0]['name']}\n")
            elif what < 0.8:
                rows = captain.ask("status")["jobs"]
                live = [row["job"] for row in rows if row["state"] in ("waiting", "running")]
                if len(live) > 6:
                    captain.ask("cancel", chance.choice(live))
            else:
                rows = captain.ask("status")["jobs"]
                captain.ask("logs", chance.choice(rows)["job"]) if rows else None
        except JoyError as error:
            with open(folder / "refused", "a") as file:
                file.write(f"{error.what}\n")
        time.sleep(chance.uniform(0, 0.4))


def drawn(chance: random.Random, folder: Path, name: str) -> dict[str, Any]:
    """A job of one to three pods that lives a few seconds."""
    kind = chance.choice(list(SIZES))
    seconds, code = chance.uniform(0, 4), int(chance.random() < 0.1)
    return {
        "name": f"j{name}", "queue": chance.choice(["owner", "guest"]), "kind": kind,
        "pods": chance.choice([1, 1, 2, 3]), "cards_per_pod": chance.choice(SIZES[kind]),
        "priority": chance.randrange(3), "retries": chance.randrange(2), "minutes": 0.1,
        "command": [sys.executable, "-S", "-c", POD, str(folder), kind, str(seconds), str(code)],
    }  # fmt: skip


def check(answer: dict[str, Any]) -> int:
    """No card twice, gangs whole, MAX kept, books even; returns how many jobs run."""
    held: dict[str, list[int]] = {"o": [], "g": []}
    used = {"owner": 0, "guest": 0}
    running = [row for row in answer["jobs"] if row["state"] == "running"]
    for row in answer["jobs"]:
        assert row["state"] in STATES
    for row in running:
        assert [pod["rank"] for pod in row["pods"]] == list(range(len(row["pods"])))
        for pod in row["pods"]:
            held[pod["node"]] += pod["cards"]
            used[row["queue"]] += len(pod["cards"])
    for node, ids in held.items():
        assert len(ids) == len(set(ids)), f"cards of {node} twice"
    for queue in QUEUES:
        assert used[queue["name"]] <= queue["max"]
    free = {node["node"]: node["free"] for node in answer["nodes"]}
    assert {node: free[node] for node in held} == {n: 8 - len(ids) for n, ids in held.items()}
    return len(running)


def test_four_command_lines_at_once_and_kills(tmp_path: Path) -> None:
    fleet = Fleet(QUEUES, NODES)
    lines: dict[int, subprocess.Popen[bytes]] = {}

    def start(number: int) -> None:
        call = (
            f"from {__name__} import *; command_line(*sys.argv[1:2], Path(sys.argv[2]), {number})"
        )
        command = [sys.executable, "-c", call, fleet.cluster.address, str(tmp_path)]
        lines[number] = subprocess.Popen(command)

    try:
        fleet.ask("status")
        for number in range(LINES):
            start(number)
        chance = random.Random(1)
        began, looks, most, kills = time.monotonic(), 0, 0, 0
        next_kill = 20.0
        while time.monotonic() - began < SECONDS:
            most = max(most, check(fleet.ask("status")))
            looks += 1
            if time.monotonic() - began > next_kill:
                number = chance.randrange(LINES)
                assert lines[number].poll() is None, "a command line ended by itself"
                lines[number].kill()
                lines[number].wait()
                start(number)
                kills, next_kill = kills + 1, next_kill + 10
            time.sleep(0.05)
        for line in lines.values():
            line.kill()
            line.wait()
        told = {name for file in tmp_path.glob("told.*") for name in file.read_text().splitlines()}
        known = {row["job"]: row for row in fleet.ask("status")["jobs"]}
        assert told <= known.keys(), "an acknowledged job is not in the ledger"
        assert most > 1
        for row in known.values():
            fleet.ask("cancel", row["job"])
        answer = fleet.ask("status")
        assert check(answer) == 0
        twice = tmp_path / "twice"
        assert not twice.exists(), twice.read_text()
        ends = [row["state"] for row in answer["jobs"]]
        print(
            f"{SECONDS:.0f} s, {len(told)} jobs, {looks} looks, {kills} kills, at most {most} "
            f"at once, {sum(row['evictions'] for row in answer['jobs'])} evictions, "
            f"{ {state: ends.count(state) for state in sorted(STATES)} }"
        )
    finally:
        for line in lines.values():
            line.kill()
        fleet.close()
