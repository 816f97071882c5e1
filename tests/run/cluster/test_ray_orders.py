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

    kinds = [fact["kind"] for fact in shell.json("history", "a")["facts"]]
    assert kinds[:3] == ["submitted", "started", "launched"]
    assert kinds.count("evicted") == 2
    assert "cordoned" in shell("history")
    fleet.clear()
    assert "no job 'nobody'" in shell("requeue", "nobody", code=2)


@pytest.mark.slow
def test_before_the_first_job_what_looks_starts_nothing_and_an_order_starts_the_controller(
    tmp_path: Path,
) -> None:
    made = Fleet([], NODES, begun=False)
    shell = Shell(made)
    try:
        assert {row["node"] for row in shell.json("status")["nodes"]} >= {"g1", "g2"}
        assert shell.json("quota", "show")["queues"] == shell.json("history")["facts"] == []
        assert "joymigrate" in shell("metrics")
        assert "no job 'a'" in shell("cancel", "a", code=2)
        assert "no node 'g9'" in shell("drain", "g9", code=2)
        assert made.captain.find() is None, "a look or a refused order has started it"
        assert shell.json("drain", "g1")["stopped"] == []
        assert made.captain.find() is not None
        queues = tmp_path / "queues.yaml"
        queues.write_text("queues:\n- {name: q, max: 4}\n")  # no `jobs`
        shell("quota", "apply", str(queues))
        (row,) = shell.json("quota", "show")["queues"]
        assert row["limits"][0]["max"] == 4
        file = tmp_path / "jobs.yaml"
        file.write_text("{name: j, kind: gpu-8, cards_per_pod: 4, queue: q, command: sleep 600}\n")
        other = str(tmp_path / "store")
        assert "lies in" in shell("submit", str(file), "--store", other, code=2)
        shell("submit", str(file))
        until(lambda: made.row("j")["pods"] != [])
        assert {pod["node"] for pod in made.row("j")["pods"]} == {"g2"}, "g1 was drained before"
        made.cluster.remove_node(made.nodes["g1"])
        until(lambda: "node gone" in shell("history"))
        said = [(fact["kind"], fact["data"]["node"]) for fact in shell.json("history")["facts"]
                if fact["kind"].startswith("node")]  # fmt: skip
        assert {name for kind, name in said if kind == "node came"} >= {"g1", "g2"}
        assert [name for kind, name in said if kind == "node gone"] == ["g1"]
        assert shell.json("logs", "j")["pods"] == [{"rank": 0, "lines": []}]
        assert shell.json("cancel", "j")["was"] == "running"
    finally:
        made.close()
