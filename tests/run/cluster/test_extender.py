"""Answers to Volcano's extender plug-in: requests as its types (pkg/scheduler/api) write them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.kubernetes.extender import PERMIT, REJECT, Extender, serve
from tests.run.cluster.test_live import NOW, NPU, node, pod

GPU = "nvidia.com/gpu"


def task(gang: str, name: str, resource: str, count: int, on: str = "", **spec: Any) -> Any:
    """A TaskInfo: fields by their Go names, the pod in it as the API server has it."""
    made = pod(name, {resource: str(count)}, on, spec=spec)
    return {
        "UID": name, "Job": f"ml/{gang}", "Name": name, "Namespace": "ml", "NodeName": on,
        "Resreq": {"MilliCPU": 0, "Memory": 0, "ScalarResources": {resource: count * 1000}},
        "Priority": spec.get("priority", 1), "Pod": made,
    }  # fmt: skip


def session(tasks: Sequence[Any], queue_of: dict[str, str], **queues: Any) -> dict[str, Any]:
    """An OnSessionOpenRequest over two servers, one of GPUs and one of NPUs."""
    nodes = [node("g", {GPU: "8"}), node("n", {NPU: "8"}, {"accelerator-type": "module-910b-8"})]
    made: dict[str, Any] = {}
    for one in tasks:
        gang = one["Job"]
        job = made.setdefault(
            gang, {"UID": gang, "Name": gang.partition("/")[2], "Namespace": "ml", "Tasks": {}}
        )
        job["Queue"] = queue_of[job["Name"]]
        job["Tasks"][one["UID"]] = one
    return {
        "Jobs": made,
        "Nodes": {one["metadata"]["name"]: {"Name": one["metadata"]["name"], "Node": one}
                  for one in nodes},
        "Queues": {name: {"Name": name, "Queue": {"metadata": {"name": name}, "spec": spec}}
                   for name, spec in queues.items()},
    }  # fmt: skip


def extender(text: Any = None) -> Extender:
    known = jobs.from_data({"jobs": [], **(text or {})})
    return Extender(lambda: NOW, known.queues, known.weights)


def test_one_budget_holds_over_gpus_and_npus() -> None:
    """No queue of Volcano can say that: 10 cards in all, whatever they are."""
    one = extender({"queues": [{"name": "team", "max": 10}]})
    tasks = [task("old", "old-0", GPU, 8, "g"), task("small", "s-0", NPU, 2),
             task("large", "l-0", NPU, 4)]  # fmt: skip
    queues = dict.fromkeys(("old", "small", "large"), "team")
    one.answer("onSessionOpen", session(tasks, queues, team={"weight": 1}))
    asked = {"Name": "n"}
    assert one.answer("predicate", {"task": tasks[1], "node": asked})["code"] == 0
    told = one.answer("predicate", {"task": tasks[2], "node": asked})
    assert told["code"] != 0
    assert "queue team would use 14 of its MAX 10" in told["status"]
    votes = {name: one.answer("jobEnqueueable", {"job": {"Name": name, "Namespace": "ml"}})
             for name in ("small", "large")}  # fmt: skip
    assert votes == {"small": {"status": PERMIT}, "large": {"status": REJECT}}
    queue = {"queue": {"Name": "team"}}
    assert one.answer("queueOverused", queue) == {"overused": True}  # old and small have it all
    one.answer("onSessionOpen", session(tasks[:1], queues, team={"weight": 1}))
    assert one.answer("queueOverused", queue) == {"overused": False}


def test_a_gang_goes_where_it_was_placed_and_nowhere_else() -> None:
    one = extender()
    tasks = [task("gang", f"w-{rank}", GPU, 4) for rank in range(2)]
    one.answer("onSessionOpen", session(tasks, {"gang": "q"}, q={"weight": 1}))
    for each in tasks:
        assert one.answer("predicate", {"task": each, "node": {"Name": "g"}})["code"] == 0
        assert (
            "was placed on g"
            in one.answer("predicate", {"task": each, "node": {"Name": "n"}})["status"]
        )
    nodes = [{"Name": "g"}, {"Name": "n"}]
    scores = one.answer("prioritize", {"task": tasks[0], "nodes": nodes})["nodeScore"]
    assert scores == {"g": 100.0, "n": 0.0}


def test_only_those_are_stopped_whose_stop_lets_the_claim_start() -> None:
    """The guest's job on NPUs would free nothing that the owner can use."""
    one = extender({"queues": [{"name": "owner", "min": {"gpu": 8}}, {"name": "guest"}]})
    tasks = [task("a", "a-0", GPU, 8, "g"), task("b", "b-0", NPU, 8, "n"),
             task("claim", "c-0", GPU, 8)]  # fmt: skip
    queues = {"a": "guest", "b": "guest", "claim": "owner"}
    one.answer("onSessionOpen", session(tasks, queues, owner={}, guest={}))
    for verb in ("reclaimable", "preemptable"):
        told = one.answer(verb, {"evictor": tasks[2], "evictees": tasks[:2]})
        assert [victim["UID"] for victim in told["victims"]] == ["a-0"]
        assert told["status"] == PERMIT
        told = one.answer(verb, {"evictor": tasks[0], "evictees": tasks[1:2]})
        assert told == {"status": REJECT, "victims": []}


def test_volcanos_own_queues_count_where_no_file_is_given() -> None:
    one = extender()
    tasks = [task("job", "j-0", GPU, 8)]
    opened = session(tasks, {"job": "q"}, q={"capability": {GPU: "4"}})
    one.answer("onSessionOpen", opened)
    assert one.answer("jobEnqueueable", {"job": {"Name": "job", "Namespace": "ml"}}) == {
        "status": REJECT
    }


def test_a_job_whose_pods_are_not_made_is_let_in_by_what_its_group_asks_for() -> None:
    """Its controller makes the pods only after it may be enqueued."""
    one = extender({"queues": [{"name": "team", "max": 12}]})
    opened = session([task("old", "old-0", GPU, 8, "g")], {"old": "team"}, team={})
    for name, count in (("fits", 4), ("over", 6)):
        opened["Jobs"][f"ml/{name}"] = {
            "UID": f"ml/{name}", "Name": name, "Namespace": "ml", "Queue": "team", "Tasks": {},
            "PodGroup": {
                "metadata": {"name": name, "namespace": "ml"},
                "spec": {"minMember": 2, "queue": "team",
                         "minResources": {NPU: str(count), "cpu": "4", "memory": "8Gi"}},
                "status": {"phase": "Pending"}, "Version": "v1beta1",
            },
        }  # fmt: skip
    one.answer("onSessionOpen", opened)
    votes = [one.answer("jobEnqueueable", {"job": opened["Jobs"][f"ml/{name}"]})["status"]
             for name in ("fits", "over")]  # fmt: skip
    assert votes == [PERMIT, REJECT]


def test_over_http_a_restart_loses_nothing_and_what_is_unknown_is_an_error() -> None:
    """After a restart Volcano's next cycle brings everything; until then it is told so."""
    tasks = [task("job", "j-0", GPU, 8)]
    opened = session(tasks, {"job": "q"}, q={})
    answers = []
    for _ in range(2):  # the second one knows nothing of the first
        server = serve("127.0.0.1", 0, extender())

        def ask(verb: str, body: Any, port: int = server.server_address[1]) -> Any:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/{verb}", json.dumps(body).encode(), method="POST"
            )
            with urllib.request.urlopen(request, timeout=20) as got:
                return json.load(got)

        try:
            with pytest.raises(urllib.error.HTTPError, match="503"):
                ask("predicate", {"task": tasks[0], "node": {"Name": "g"}})
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask("onSessionOpen", {"Nodes": {"x": {"Node": {"spec": {}}}}})
            assert ask("onSessionOpen", opened) == {}
            answers.append(ask("predicate", {"task": tasks[0], "node": {"Name": "g"}}))
        finally:
            server.shutdown()
            server.server_close()
    assert answers == [{"status": "", "code": 0}] * 2


def test_a_verb_that_nobody_knows_is_refused() -> None:
    with pytest.raises(JoyError, match="no verb 'bind'"):
        extender().answer("bind", {})
