"""The controller is killed again and again while jobs come, run and end on a real Ray.

Every pod locks a file per card that it was given until its process is gone, and writes one line for
its start. JOYMIGRATE_KILLS says how often the controller is killed (20).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("psutil")
pytest.importorskip("ray", reason="pip install 'joymigrate[cluster]'")

import psutil

from joymigrate.errors import JoyError
from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.on_ray import follow
from tests.run.cluster.test_ray import Fleet, until
from tests.run.cluster.test_ray_stress import NODES, POD, QUEUES, check

KILLS = int(os.environ.get("JOYMIGRATE_KILLS", "20"))
STARTS = f"""
import os, sys
with open(sys.argv[1] + "/starts", "a") as file:
    file.write(os.environ["JOYMIGRATE_JOB"] + " " + os.environ["RANK"] + "\\n")
{POD}"""


def controller(fleet: Fleet) -> int:
    """The process that decides: a child of this cluster's head."""
    head = fleet.cluster.head_node.all_processes["raylet"][0].process.pid
    found: list[int] = []

    def there() -> bool:
        found[:] = [child.pid for child in psutil.Process(head).children() if decides(child)]
        return len(found) == 1

    until(there)
    return found[0]


def decides(process: Any) -> bool:
    try:
        return any("Controller" in word for word in process.cmdline()[:1])
    except psutil.Error:  # it has just ended
        return False


def kill(fleet: Fleet) -> None:
    os.kill(controller(fleet), signal.SIGKILL)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(QUEUES, NODES)
    yield made
    made.close()


def drawn(chance: random.Random, folder: Path, name: str) -> dict[str, Any]:
    kind = chance.choice(["ascend-910-8", "gpu-8"])
    sizes = {"ascend-910-8": (1, 2, 4), "gpu-8": (1, 2, 3, 4)}[kind]
    return {
        "name": name, "queue": chance.choice(["owner", "guest"]), "kind": kind,
        "pods": chance.choice([1, 1, 2]), "cards_per_pod": chance.choice(sizes),
        "priority": chance.randrange(3), "minutes": 0.1,
        "command": [
            sys.executable, "-S", "-c", STARTS, str(folder), kind, str(chance.uniform(0, 3)), "0",
        ],
    }  # fmt: skip


def play(fleet: Fleet, folder: Path, kills: int, per_kill: int = 3) -> dict[str, dict[str, Any]]:
    """Submit under fire; returns all jobs at their end, with everything held against the books."""
    chance = random.Random(kills)
    acknowledged: list[str] = []
    for turn in range(kills):
        for number in range(per_kill):
            new = drawn(chance, folder, f"j{turn}-{number}")
            if number == chance.randrange(per_kill):
                kill(fleet)  # before, or while, it is asked
            made = jobs.from_data({"jobs": [new]}).jobs
            request = fleet.captain.find().submit.remote(made, "me", uuid4().hex)
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0, 0.05))
                kill(fleet)
            assert fleet.ray.get(request)["jobs"][0]["job"] == new["name"]
            acknowledged.append(new["name"])
        check(fleet.ask("status"))
        time.sleep(chance.uniform(0, 1.0))
        answer = fleet.ask("status")
        check(answer)
        live = [row["job"] for row in answer["jobs"] if row["state"] in ("waiting", "running")]
        if len(live) > 10:
            drained(fleet, 6)
    drained(fleet, 0)
    rows = {row["job"]: row for row in fleet.ask("status")["jobs"]}
    assert sorted(rows) == sorted(acknowledged)  # none lost, none twice
    return rows


def drained(fleet: Fleet, left: int) -> None:
    """Wait until no more than this many jobs live; says which do where they live too long."""
    try:
        until(lambda: count_live(fleet) <= left, 240.0)
    except AssertionError:
        for row in fleet.ask("status")["jobs"]:
            print(row)
        raise


def count_live(fleet: Fleet) -> int:
    rows = fleet.ask("status")["jobs"]
    return sum(row["state"] in ("waiting", "running") for row in rows)


def judge(rows: dict[str, dict[str, Any]], folder: Path) -> None:
    """All jobs are done, no card was held twice, every attempt started each rank once."""
    assert {row["state"] for row in rows.values()} == {"done"}
    assert not (folder / "twice").exists(), (folder / "twice").read_text()
    starts = Counter((folder / "starts").read_text().splitlines())
    for name, row in rows.items():
        for rank in range(row["world"]):
            assert 1 <= starts[f"{name} {rank}"] <= row["tries"]


@pytest.mark.slow
def test_a_killed_controller_finds_its_jobs_again(fleet: Fleet, tmp_path: Path) -> None:
    judge(play(fleet, tmp_path, kills=3), tmp_path)


@pytest.mark.slow
def test_killed_twenty_times_under_load(fleet: Fleet, tmp_path: Path) -> None:
    rows = play(fleet, tmp_path, kills=KILLS)
    judge(rows, tmp_path)
    tries = sum(row["tries"] for row in rows.values())
    print(f"{KILLS} kills, {len(rows)} jobs, {tries} starts")


@pytest.mark.slow
def test_live_pods_are_adopted_and_their_whole_output_is_there(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The same process runs on, its cards stay its own, and no line of it is lost."""
    lines = 30_000
    code = f"""
import os, sys, time
print(os.getpid(), flush=True)
for number in range({lines}):
    print(number, "x" * 20)
sys.stdout.flush()
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
print("end")
"""
    go = tmp_path / "go"
    new = {
        "name": "long", "queue": "owner", "kind": "gpu-8", "cards_per_pod": 8,
        "command": [sys.executable, "-c", code, str(go)],
    }  # fmt: skip
    fleet.ask("submit", [new])
    until(lambda: fleet.ask("logs", "long", 1) == [[f"{lines - 1} {'x' * 20}"]])
    before = fleet.row("long")
    for _ in range(2):
        kill(fleet)
        fleet.ask("submit", [{**new, "name": f"next{_}"}])
    assert {**fleet.row("long"), "waited_s": 0} == {**before, "waited_s": 0}
    go.touch()
    until(lambda: fleet.row("long")["state"] == "done")
    row = fleet.row("long")
    assert (row["tries"], row["exit_codes"]) == (1, [0])
    (text,) = follow.whole(fleet.captain, "long")
    assert len(text) == lines + 2
    assert text[1] == f"0 {'x' * 20}"
    assert text[-1] == "end"
    until(lambda: fleet.row("next1")["state"] == "done")


@pytest.mark.slow
def test_a_new_ray_cluster_goes_on_from_the_old_one_s_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)"
    new = {
        "queue": "owner", "kind": "gpu-8", "cards_per_pod": 8,
        "command": [sys.executable, "-c", waits, str(tmp_path / "go")],
    }  # fmt: skip
    first = Fleet(QUEUES, NODES, str(store))
    try:
        first.ask("submit", [{**new, "name": "runs"}, {**new, "name": "waits"}])
        until(lambda: first.row("runs")["state"] == "running")
        until(lambda: first.ask("logs", "runs", 1) == [[]])
    finally:
        first.close()
    second = Fleet([], NODES, str(store))
    try:
        (tmp_path / "go").touch()
        until(lambda: count_live(second) == 0)
        rows = {row["job"]: row for row in second.ask("status")["jobs"]}
        assert {name: row["state"] for name, row in rows.items()} == {
            "runs": "done",
            "waits": "done",
        }
        assert rows["runs"]["tries"] == 2
        with pytest.raises(JoyError, match="no queue 'nowhere'"):  # the queues are the first one's
            second.ask("submit", [{**new, "name": "x", "queue": "nowhere"}])
    finally:
        second.close()
