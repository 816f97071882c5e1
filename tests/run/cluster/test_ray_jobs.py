"""Arrays, dependencies, time limits, commands beside a job and sick cards on a real Ray."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="pip install 'joymigrate[cluster]'")

from tests.run.cluster.test_ray import Fleet, Shell, job, until

NODES = (("g1", "gpu-4", "l0", {"num_gpus": 4}),)
TOOL = """#!/bin/sh
case "$*" in *remapped_rows*) printf '0, 0, 0\\n3, 12, 0\\n' ;; esac
"""
SLOW_END = """
import signal, sys, time
def end(*_):
    print('saving', flush=True); time.sleep(2); print('saved', flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('runs', flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("bin")
    tool = folder / "nvidia-smi"
    tool.write_text(TOOL)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    made = Fleet([{"name": "q"}], NODES)
    os.environ["PATH"] = before
    yield made
    made.close()


@pytest.fixture(autouse=True)
def empty(fleet: Fleet) -> Iterator[None]:
    yield
    fleet.clear()


def say(name: str, script: str, **more: Any) -> dict[str, Any]:
    return job(name, kind="gpu-4", **more) | {"command": [sys.executable, "-c", script]}


def state(fleet: Fleet, name: str) -> str:
    return str(fleet.row(name)["state"])


def failed(fleet: Fleet) -> list[int]:
    (node,) = [one for one in fleet.ask("status")["nodes"] if one["node"] == "g1"]
    return list(node["failed"])


@pytest.mark.slow
def test_cards_that_their_tool_calls_broken_are_not_granted(fleet: Fleet) -> None:
    until(lambda: failed(fleet) == [3])
    (fact,) = [one for one in fleet.ask("history") if one["kind"] == "cards_failed"]
    assert (fact["by"], fact["data"]["why"]) == ("health", "card 3: 12 uncorrected memory errors")
    fleet.ask("submit", [job("four", kind="gpu-4", cards_per_pod=4)])
    assert state(fleet, "four") == "waiting"


@pytest.mark.slow
def test_a_job_after_another_starts_when_it_has_ended_well(fleet: Fleet) -> None:
    script = "import time; time.sleep(3); print(0, flush=True)"
    fleet.ask("submit", [say("a", script), say("then", "print(1)", after="a")])
    assert state(fleet, "then") == "waiting"
    assert "a (afterok)" in fleet.row("then")["reason"]
    until(lambda: state(fleet, "then") == "done")
    assert fleet.ask("cancel", "a") == "done"


@pytest.mark.slow
def test_a_job_after_one_that_fails_never_starts_and_says_so(fleet: Fleet) -> None:
    fleet.ask("submit", [say("bad", "raise SystemExit(3)"), say("next", "print(1)", after="bad")])
    until(lambda: bool(fleet.row("next")["permanent"]))
    assert (
        fleet.row("next")["reason"]
        == "comes after job bad (afterok), which failed or was cancelled"
    )


@pytest.mark.slow  # its limit has to be longer than a busy machine takes to start a process
def test_a_time_limit_ends_a_job_which_has_its_grace(fleet: Fleet) -> None:
    fleet.ask("submit", [say("slow", SLOW_END, time_limit_minutes=0.75, grace_s=20)])
    until(lambda: state(fleet, "slow") == "failed")
    assert fleet.row("slow")["reason"] == "stopped at its time limit of 0.75 minutes"
    until(lambda: "saved" in fleet.ask("logs", "slow")[0])
    until(lambda: any(one["kind"] == "closed" for one in fleet.ask("history", "slow")))


SAVES = """
import os, pathlib, signal, sys, time
kept = pathlib.Path(sys.argv[1]) / os.environ['RANK']
steps = int(kept.read_text()) if kept.exists() else 0
def save(*_):
    kept.write_text(str(steps)); print('saved', steps, flush=True); sys.exit(3)
signal.signal(signal.SIGUSR1, save)
print('of', os.environ['WORLD_SIZE'], 'from', steps, flush=True)
while True:
    time.sleep(0.05); steps += 1
"""


@pytest.mark.slow
def test_an_elastic_job_saves_and_goes_on_in_another_size(fleet: Fleet, tmp_path: Path) -> None:
    wide = say("e", SAVES, pods=3, cards_per_pod=1, min_pods=1, resize_after_minutes=0)
    wide["command"].append(str(tmp_path))
    fleet.ask("submit", [wide])
    assert [line.split()[1] for line in fleet.first_lines("e")] == ["3"] * 3, "a card is broken"
    fleet.ask("submit", [job("j", kind="gpu-4", cards_per_pod=2)])
    until(lambda: state(fleet, "j") == "running" and fleet.row("e")["world"] == 1)
    row = fleet.row("e")
    until(lambda: all(len(pod) == 1 for pod in fleet.ask("logs", "e")))
    words = [line.split() for line in fleet.first_lines("e")]
    assert [word[1] for word in words] == ["1"]
    assert all(int(word[3]) > 0 for word in words), "it went on where it had saved"
    assert (row["state"], row["evictions"], row["tries"]) == ("running", 0, 1)
    (first, *_) = [one["number"] for one in fleet.ask("history", "e") if one["kind"] == "started"]
    assert "saved" in fleet.ask("logs", "e", 5, first)[2][-1]
    fleet.ask("cancel", "j")
    until(lambda: fleet.row("e")["world"] == 3 and len(fleet.row("e")["pods"]) == 3)
    until(lambda: [line.split()[1] for line in fleet.first_lines("e")] == ["3"] * 3)


@pytest.mark.slow
def test_joymigrate_train_goes_on_with_fewer_processes(fleet: Fleet, tmp_path: Path) -> None:
    from tests.run.train import jobs as tiny

    file = tiny.write(tmp_path, steps=100000, layout={"dp": 2})
    run = tmp_path / "run"
    command = [sys.executable, "-m", "joymigrate", "train", str(file), "--run", str(run)]
    wide = say("e", "", pods=2, cards_per_pod=1, min_pods=1, resize_after_minutes=0)
    fleet.ask("submit", [wide | {"command": command}])
    losses = run / "metrics.jsonl"
    until(lambda: losses.exists() and len(losses.read_text().splitlines()) > 5, 120)
    fleet.ask("submit", [job("j", kind="gpu-4", cards_per_pod=2)])
    until(lambda: state(fleet, "j") == "running" and fleet.row("e")["world"] == 1)
    before = len(losses.read_text().splitlines())
    until(lambda: len(losses.read_text().splitlines()) > before + 5, 120)
    tiny.losses(run)  # each step once and in order


@pytest.mark.slow
def test_cards_on_which_three_programs_fail_in_a_row_are_taken_out(
    fleet: Fleet, tmp_path: Path
) -> None:
    for number in range(3):
        name = f"f{number}"
        fleet.ask("submit", [say(name, f"raise SystemExit({number + 1})")])
        until(lambda: state(fleet, name) == "failed")  # noqa: B023
    until(lambda: 0 in failed(fleet))
    data = json.loads(Shell(fleet)("cards", "heal", "g1", "0", "--format", "json"))
    assert data["order"] == "heal"
