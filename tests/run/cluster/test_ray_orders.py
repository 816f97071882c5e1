"""An operator's day on a real Ray, by command line: drain, fail, hold, quotas, use, reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="pip install 'joymigrate[cluster]'")

from tests.run.cluster.test_ray import Fleet, Shell, job, until

NODES = (
    ("g1", "gpu-8", "l0", {"num_gpus": 8}),
    ("g2", "gpu-8", "l0", {"num_gpus": 8}),
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    made = Fleet([{"name": "q", "max": 16}], NODES)
    yield made
    made.close()


@pytest.mark.slow
def test_a_day(fleet: Fleet, tmp_path: Path) -> None:
    shell = Shell(fleet)
    fleet.ask("submit", [job("a", kind="gpu-8", cards_per_pod=8, minutes=60)])
    fleet.first_lines("a")
    (old,) = (pod["node"] for pod in fleet.row("a")["pods"])

    answer = shell.json("drain", old, "--why", "driver")
    assert (answer["stopped"], answer["started"]) == (["a"], ["a"])
    until(lambda: fleet.row("a")["state"] == "running")
    (new,) = (pod["node"] for pod in fleet.row("a")["pods"])
    assert new != old
    fleet.first_lines("a")

    fleet.ask("submit", [job("b", kind="gpu-8", cards_per_pod=8)])
    data = shell.json("why", "b")
    assert data["enough"]["ends"][0]["job"] == "a"
    assert data["failed"] == {old: [*range(8)]}
    assert 0 < data["start"]["in_s"] <= 3600
    assert "enough when a ends" in shell("why", "b")

    shell("hold", "b", "--why", "not yet")
    shell("undrain", old)
    assert fleet.row("b")["state"] == "held"
    assert "not yet" in shell("status")
    shell("release", "b")
    until(lambda: fleet.row("b")["state"] == "running")
    fleet.first_lines("b")

    assert shell.json("cards", "fail", new, "0")["stopped"] == ["a"]
    assert fleet.row("a")["state"] == "waiting"
    assert f"{new}: gpu-8, 7/8 free, failed: 0" in shell("status")
    shell("priority", "a", "3")
    assert fleet.row("a")["priority"] == 3
    shell("cards", "heal", new)
    until(lambda: fleet.row("a")["state"] == "running")

    other = tmp_path / "queues.yaml"
    other.write_text("jobs: []\nqueues:\n- {name: q, max: 8}\n")
    assert "queue q: max 16 cards -> 8 cards" in shell("quota", "diff", str(other), code=1)
    shell("quota", "apply", str(other))
    (row,) = shell.json("quota", "show")["queues"]
    assert (row["limits"][0]["max"], row["limits"][0]["used"], row["running"]) == (8, 16, 2)

    words = ("--node", new, "--start", "+2h", "--hours", "1", "--stop-running", "--queue", "q")
    shell("reserve", "add", "course", *words)
    assert shell.json("reserve", "show")["reservations"][0]["cards"][0]["node"] == new
    assert "course" in shell("reserve", "show")
    shell("reserve", "cancel", "course")
    assert "no reservation" in shell("reserve", "cancel", "course", code=2)

    kinds = [fact["kind"] for fact in shell.json("history", "a")["facts"]]
    assert kinds[:3] == ["submitted", "started", "launched"]
    assert kinds.count("evicted") == 2
    assert "cordoned" in shell("history")
    fleet.clear()
    shell("usage", "--format", "csv", "-o", str(tmp_path / "use.csv"))
    text = (tmp_path / "use.csv").read_text()
    assert text.startswith("user,queue,kind,jobs,starts,card_h,wasted_card_h,wait_h\n")
    assert "no job 'nobody'" in shell("requeue", "nobody", code=2)


@pytest.mark.slow
def test_from_the_first_user_on_every_request_needs_a_token(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(fleet)
    assert "No users" in shell("users", "show")
    assert "must be an admin" in shell("users", "add", "bob", code=2)
    admin = shell("users", "add", "root", "--role", "admin").strip().partition("=")[2]
    assert "set JOYMIGRATE_TOKEN" in shell("status", code=2)
    monkeypatch.setenv("JOYMIGRATE_TOKEN", admin)
    bob = shell("users", "add", "bob", "--queue", "q").strip().partition("=")[2]
    fleet.ask("submit", [job("theirs", kind="gpu-8", cards_per_pod=1, queue="q")])
    assert fleet.row("theirs")["by"] == "root"
    monkeypatch.setenv("JOYMIGRATE_TOKEN", bob)
    assert "jobs of others" in shell("cancel", "theirs", code=2)
    assert "this takes the role operator" in shell("drain", "g1", code=2)
    monkeypatch.setenv("JOYMIGRATE_TOKEN", admin)
    rows = shell.json("audit")["requests"]
    assert [(row["by"], row["request"]) for row in rows if row["outcome"] != "done"][-2:] == [
        ("bob", "cancel"), ("bob", "order"),
    ]  # fmt: skip
    assert bob not in shell("history") + shell("audit")
    fleet.clear()
    shell("users", "remove", "bob")
    shell("users", "remove", "root")
    monkeypatch.delenv("JOYMIGRATE_TOKEN")
    assert "theirs" in shell("status")
