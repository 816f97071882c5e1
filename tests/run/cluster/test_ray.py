"""Gangs on a real Ray with fake GPU and NPU nodes: planned ids, eviction, a dead node, two CLIs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import jobs

pytest.importorskip("ray", reason="pip install 'joymigrate[cluster]'")

LIMIT_S = 300.0  # no test waits longer for what takes a few seconds on an idle machine
STARTS = 3  # of a Ray node: Ray gives one up after 30 s, which a loaded machine needs
SHOW = (
    "import os,time,sys;"
    "get=os.environ.get;"
    "said=map(str,(get('ASCEND_RT_VISIBLE_DEVICES'),get('CUDA_VISIBLE_DEVICES'),"
    "get('RANK'),get('WORLD_SIZE')));"
    "print(' '.join(said),flush=True);"  # in one piece: a log is also read in the middle of a line
    "time.sleep(float(sys.argv[1]))"
)
NODES = (
    ("o1", "ascend-910-8", "l0", {"resources": {"NPU": 8}}),
    ("o2", "ascend-910-8", "l0", {"resources": {"NPU": 8}}),
    ("o3", "ascend-910-8", "l1", {"resources": {"NPU": 8}}),
    ("g1", "gpu-8", "l1", {"num_gpus": 8}),
)


def job(name: str, seconds: float = 600, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "queue": "q",
        "command": [sys.executable, "-c", SHOW, str(seconds)],
        **more,
    }


def begin(start: Callable[[], Any]) -> Any:
    """What starts processes of Ray, once more where Ray gave up waiting for them."""
    for left in reversed(range(STARTS)):
        try:
            return start()
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
    raise AssertionError("tried")


class Fleet:
    """A Ray cluster of fake nodes and the captain on it."""

    def __init__(
        self, queues: Sequence[dict[str, Any]], nodes: Sequence[Any] = NODES, store: str = "",
        begun: bool = True,
    ) -> None:  # fmt: skip
        from ray.cluster_utils import Cluster

        from joymigrate.run.cluster.on_ray import connect

        self.connect = connect
        small = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 2}
        self.cluster = begin(
            lambda: Cluster(
                initialize_head=True, head_node_args={**small, "include_dashboard": False}
            )
        )
        self.nodes = {
            name: self._add(name, kind, leaf, {**small, **resources})
            for name, kind, leaf, resources in nodes
        }
        self.cluster.wait_for_nodes()
        self.ray = connect.attach(self.cluster.address)
        known = jobs.from_data({"jobs": [], "queues": list(queues)})
        self.captain = connect.ControllerClient(self.ray, store=store)
        if begun:
            self.captain.start(known)

    def _add(self, name: str, kind: str, leaf: str, resources: Mapping[str, Any]) -> Any:
        labels = {"joymigrate/name": name, "joymigrate/kind": kind, "joymigrate/leaf": leaf}
        return begin(lambda: self.cluster.add_node(**resources, labels=labels))

    def ask(self, method: str, *arguments: Any) -> Any:
        if method == "submit":
            arguments = (jobs.from_data({"jobs": list(arguments[0])}).jobs, *arguments[1:])
        return self.captain.ask(method, *arguments)

    def row(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status", [name])["jobs"][0]
        return found

    def first_lines(self, name: str) -> list[str]:
        """The first line of every pod, once all of them have said something."""
        found: list[str] = []

        def spoken() -> bool:
            lines = self.ask("logs", name)
            found[:] = [pod[0] for pod in lines if pod]
            return bool(lines) and len(found) == len(lines)

        until(spoken)
        return found

    def clear(self) -> None:
        for row in self.ask("status")["jobs"]:
            self.ask("cancel", row["job"])

    def close(self) -> None:
        self.ray.shutdown()
        self.cluster.shutdown()


class Shell:
    """Command lines on one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.address = fleet.cluster.address

    def __call__(self, *words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "joymigrate", "cluster", *words, "--address", self.address]
        environment = {**os.environ, "RAY_ADDRESS": ""}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=LIMIT_S
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout if code != 2 else done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--format", "json"))


def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
    """Wait for something and return the seconds it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > limit_s:
            raise AssertionError(f"not within {limit_s} s")
        time.sleep(0.1)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    made = Fleet([{"name": "q", "eviction": "lower-priority"}])
    yield made
    made.close()


def test_processes_see_exactly_the_planned_cards(fleet: Fleet) -> None:
    """One card first, then four: they get a ring of their own, which Ray alone would cross."""
    fleet.ask(
        "submit",
        [
            job("one", kind="ascend-910-8", cards_per_pod=1),
            job("four", kind="ascend-910-8", cards_per_pod=4),
            job("gang", kind="ascend-910-8", cards_per_pod=8, pods=2),
            job("gpu", kind="gpu-8", cards_per_pod=2),
        ],
    )
    for name in ("one", "four", "gang", "gpu"):
        pods = fleet.row(name)["pods"]
        seen = [line.split() for line in fleet.first_lines(name)]
        for pod, (npu, gpu, rank, world) in zip(pods, seen, strict=True):
            planned = ",".join(str(card) for card in pod["cards"])
            assert (gpu if name == "gpu" else npu) == planned
            assert (int(rank), int(world)) == (pod["rank"], len(pods))
    assert set(fleet.row("four")["pods"][0]["cards"]) in ({0, 1, 2, 3}, {4, 5, 6, 7})
    fleet.clear()


@pytest.mark.slow
def test_a_second_command_line_sees_and_cancels(fleet: Fleet) -> None:
    fleet.ask("submit", [job("mine", kind="gpu-8", cards_per_pod=8)])
    with pytest.raises(JoyError, match="is running"):
        fleet.ask("submit", [job("mine", kind="gpu-8", cards_per_pod=8)])
    fleet.ask("submit", [job("next", kind="gpu-8", cards_per_pod=8)])
    shell = [sys.executable, "-m", "joymigrate", "cluster"]
    there = ["--address", fleet.cluster.address]
    environment = {**os.environ, "RAY_ADDRESS": ""}

    def cli(*arguments: str) -> str:
        command = [*shell, *arguments, *there]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = {row["job"]: row for row in json.loads(cli("status", "--format", "json"))["jobs"]}
    assert rows["mine"]["state"] == "running"
    assert rows["next"]["reason"] == "needs 8 cards of gpu-8, 0 are free"
    assert cli("cancel", "mine") == "mine: was running\n"
    assert fleet.first_lines("next")[0].split()[1] == "0,1,2,3,4,5,6,7"
    assert cli("logs", "next").startswith("[0] ")
    fleet.clear()


@pytest.mark.slow
def test_a_claim_stops_lower_priority_and_runs(fleet: Fleet) -> None:
    fleet.ask("submit", [job("low", kind="gpu-8", cards_per_pod=8)])
    fleet.first_lines("low")
    fleet.ask("submit", [job("high", kind="gpu-8", cards_per_pod=8, priority=5)])
    fleet.first_lines("high")
    low = fleet.row("low")
    assert (low["state"], low["evictions"]) == ("waiting", 1)
    fleet.ask("cancel", "high")
    fleet.first_lines("low")
    fleet.clear()


def test_a_refused_submission_leaves_nothing_behind(fleet: Fleet) -> None:
    good = job("good", kind="gpu-8", cards_per_pod=1)
    held = [{"node": "g1", "cards": [0]}]
    for bad, says in (
        ({**good, "name": "bad", "queue": "nowhere"}, "no queue 'nowhere'"),
        ({**good, "name": "bad", "command": []}, "has no command"),
        ({**good, "name": "bad", "running": held}, "says where it runs"),
    ):
        with pytest.raises(JoyError, match=says):
            fleet.ask("submit", [good, bad])
        assert [row["job"] for row in fleet.ask("status", ["good", "bad"])["jobs"]] == []
    fleet.ask("submit", [good])
    fleet.first_lines("good")
    fleet.clear()


def test_a_command_beside_a_running_job(fleet: Fleet) -> None:
    shell = Shell(fleet)
    fleet.ask("submit", [job("r", kind="gpu-8", cards_per_pod=2)])
    fleet.first_lines("r")
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['JOYMIGRATE_JOB'])"
    assert shell("exec", "r", "--", sys.executable, "-c", show).split() == ["0,1", "r"]
    shell("exec", "r", "--", sys.executable, "-c", "raise SystemExit(1)", code=1)
    began = time.monotonic()
    code, _ = fleet.ask("execute", "r", 0, ["sleep", "60"], 1.0)
    assert (code, time.monotonic() - began < 20) == (124, True)
    with pytest.raises(JoyError, match="no rank 4"):
        fleet.ask("execute", "r", 4, ["true"], 1.0)
    assert fleet.ask("execute", "r", 0, ["no-such-program"], 5.0)[0] == 127
    commands = [
        one["data"]["command"][0] for one in fleet.ask("history", "r") if one["kind"] == "exec"
    ]
    assert "sleep" in commands
    fleet.clear()


@pytest.mark.slow
def test_a_failed_command_is_tried_again_as_often_as_it_may(fleet: Fleet) -> None:
    fails = [sys.executable, "-c", "import sys; print('no'); sys.exit(3)"]
    base = {"kind": "gpu-8", "cards_per_pod": 1, "retries": 1}
    fleet.ask("submit", [{**job("fails", **base), "command": fails}])
    until(lambda: fleet.row("fails")["state"] == "failed")
    row = fleet.row("fails")
    assert (row["tries"], row["exit_codes"]) == (2, [3])
    assert fleet.ask("logs", "fails") == [["no"]]


@pytest.mark.slow
def test_a_dead_node_sends_its_gang_elsewhere(fleet: Fleet) -> None:
    fleet.ask("submit", [job("gang", kind="ascend-910-8", cards_per_pod=8, pods=2)])
    fleet.first_lines("gang")
    dead = fleet.row("gang")["pods"][0]["node"]
    fleet.cluster.remove_node(fleet.nodes[dead], allow_graceful=False)

    def replaced() -> bool:
        row = fleet.row("gang")
        return row["state"] == "running" and dead not in [pod["node"] for pod in row["pods"]]

    assert until(replaced) < 30
    assert len(fleet.first_lines("gang")) == 2
    assert fleet.row("gang")["evictions"] == 1
    # The node comes back under its name, and one whose label is wrong comes with it.
    npus = {"num_cpus": 2, "resources": {"NPU": 8}, "object_store_memory": 80 * 1024 * 1024}
    for name, kind in ((dead, "ascend-910-8"), ("odd", "ascend-911-8")):
        labels = {"joymigrate/name": name, "joymigrate/kind": kind}
        fleet.nodes[name] = fleet.cluster.add_node(**npus, labels=labels)

    def free() -> dict[str, int]:
        return {node["node"]: node["free"] for node in fleet.ask("status")["nodes"]}

    until(lambda: free().get(dead) == 8 and free().get("odd") == 8)
    assert fleet.row("gang")["state"] == "running"
    assert "ascend-911-8" in fleet.ask("status")["warnings"][0]
    fleet.ask("submit", [job("three", kind="ascend-910-8", cards_per_pod=8)])
    assert fleet.row("three")["pods"][0]["node"] == dead
    fleet.first_lines("three")
    fleet.clear()


def test_what_ray_reports_of_a_killed_worker_is_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Ray prints it to stdout, between the braces of a command's JSON."""
    from ray._private import worker

    from joymigrate.run.cluster.on_ray import connect

    connect.keep_stdout()
    connect.keep_stdout()  # once is enough
    message = {"lines": ["A worker died or was killed"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(message, ignore_prefix=False)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("A worker died") == 1


def test_nodes_of_one_name_count_once_and_a_wrong_kind_claims_no_ring() -> None:
    from joymigrate.run.cluster.on_ray.nodes import inventory

    labels = {"joymigrate/name": "n", "joymigrate/kind": "ascend-910-8"}
    raw = {"Alive": True, "NodeID": "1" * 32, "Resources": {"NPU": 8.0}, "Labels": labels}
    wrong = {**labels, "joymigrate/name": "w", "joymigrate/kind": "ascend-901-8"}
    found, ids = inventory([raw, {**raw, "NodeID": "2" * 32}, {**raw, "Labels": wrong}])
    assert (ids["n"], [node.name for node in found.nodes]) == ("1" * 32, ["n", "w"])
    assert found.nodes[1].kind.groups == ()
    assert "two nodes have this name" in found.warnings[0]
    assert "ascend-901-8" in found.warnings[1]


def test_a_ray_without_our_labels_claims_no_ring() -> None:
    from joymigrate.run.cluster.on_ray.nodes import inventory

    raw = {"Alive": True, "NodeID": "ab" * 16, "Resources": {"NPU": 8.0, "CPU": 4.0}, "Labels": {}}
    found, ids = inventory([raw, {**raw, "Alive": False, "NodeID": "x"}])
    assert len(ids) == 1
    assert (found.nodes[0].cards, found.nodes[0].kind.groups) == (8, ())
    assert "no ring is claimed" in found.warnings[0]
