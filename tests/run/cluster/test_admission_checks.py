"""Kueue's AdmissionChecks: Workloads as its API has them (apis/kueue/v1beta2/workload_types.go)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.kubernetes import admission_checks as checks
from joymigrate.run.cluster.kubernetes import live
from tests.run.cluster.test_live import NOW, NPU, node, pod

GPU = "nvidia.com/gpu"
KUEUE = "kueue.x-k8s.io/v1beta2"
OURS = {"metadata": {"name": "budget", "resourceVersion": "1"},
        "spec": {"controllerName": checks.CONTROLLER}}  # fmt: skip
BUDGET = """
queues: [{name: team, max: 10}]
"""


def workload(name: str, resource: str, cards: int, state: str = "Pending", **more: Any) -> Any:
    """A Workload of the Job `name` with quota, whose check `budget` has this state."""
    template = {"spec": {"containers": [{"resources": {"requests": {resource: str(cards)}}}]}}
    when = "2027-01-15T08:00:00Z"  # NOW
    true = [more.pop("conditions", "QuotaReserved")] if state == "Pending" else [
        "QuotaReserved", "Admitted"]  # fmt: skip
    return {
        "metadata": {
            "name": f"job-{name}", "namespace": "ml", "resourceVersion": "7", "uid": f"u-{name}",
            "ownerReferences": [{"kind": "Job", "name": name, "controller": True}],
        },
        "spec": {
            "queueName": "local", "active": True, "priority": more.pop("priority", 0),
            "podSets": [{"name": "main", "count": more.pop("count", 1), "template": template}],
        },
        "status": {
            "conditions": [{"type": one, "status": "True", "lastTransitionTime": when}
                           for one in true],
            "admissionChecks": [
                {"name": "other", "state": "Ready", "message": "", "lastTransitionTime": when},
                {"name": "budget", "state": state, "message": "", "lastTransitionTime": when},
            ],
        },
    }  # fmt: skip


def runs(name: str, resource: str, cards: int, on: str, queue: str = "local") -> Any:
    labels = {"job-name": name, "kueue.x-k8s.io/queue-name": queue}
    return pod(f"{name}-0", {resource: str(cards)}, on, labels=labels)


def objects(workloads: list[Any], pods: list[Any] = (), queue: str = "team") -> live.Objects:  # type: ignore[assignment]
    return {
        ("v1", "Node"): [node("g", {GPU: "8"}),
                         node("n", {NPU: "8"}, {"accelerator-type": "module-910b-8"})],
        ("v1", "Pod"): list(pods),
        (KUEUE, "ClusterQueue"): [{"metadata": {"name": "team"}, "spec": {}},
                                  {"metadata": {"name": "guest"}, "spec": {}}],
        (KUEUE, "LocalQueue"): [
            {"metadata": {"name": name, "namespace": "ml"}, "spec": {"clusterQueue": of}}
            for name, of in (("local", queue), ("guests", "guest"))
        ],
        (KUEUE, "Workload"): workloads,
        (KUEUE, "AdmissionCheck"): [OURS],
    }  # fmt: skip


def told(found: live.Objects, text: str = BUDGET) -> dict[str, tuple[str, str]]:
    known = jobs.from_data({"jobs": [], **yaml.safe_load(text)})
    verdicts = checks.decide(found, NOW, known.queues, known.weights)
    return {one.name: (one.state, one.message) for one in verdicts}


def test_one_budget_holds_over_gpus_and_npus() -> None:
    """8 GPUs run; of 10 cards in all two more may, whatever they are. No quota of Kueue's does."""
    found = objects(
        [workload("old", GPU, 8, "Ready"), workload("small", NPU, 2), workload("large", NPU, 4)],
        [runs("old", GPU, 8, "g")],
    )
    said = told(found)
    assert said["ml/job-small"] == ("Ready", "there is room on n")
    state, message = said["ml/job-large"]
    assert state == "Retry"
    assert "queue team would use 14 of its MAX 10" in message
    assert "ml/job-old" not in said
    other = {**OURS, "spec": {"controllerName": "somebody.else"}}
    assert checks.decide({**found, (KUEUE, "AdmissionCheck"): [other]}, NOW) == []


def test_what_was_let_in_keeps_its_cards_until_its_pods_are_there() -> None:
    """Also one that Kueue admitted without asking us; one without quota is not in the line."""
    first = workload("first", NPU, 8, "Ready")
    unasked = workload("unasked", GPU, 8, "Ready")
    unasked["status"]["admissionChecks"] = []
    late = [workload("late", NPU, 8), workload("more", GPU, 8)]
    idle = workload("idle", NPU, 8, conditions="Evicted", priority=9)
    said = told(objects([idle, *late, first, unasked]), "queues: [{name: team}]")
    assert {name: state for name, (state, _) in said.items()} == {
        "ml/job-late": "Retry", "ml/job-more": "Retry"}  # fmt: skip


def test_a_claim_stops_those_it_may_and_is_let_in_when_they_have_gone() -> None:
    text = "queues: [{name: team, min: {npu: 8}}, {name: guest}]"
    guest = workload("guest", NPU, 8, "Ready")
    guest["spec"]["queueName"] = "guests"
    claim = workload("claim", NPU, 8)
    found = objects([guest, claim], [runs("guest", NPU, 8, "n", "guests")])
    assert told(found, text) == {
        "ml/job-guest": ("Retry", "ml/claim is entitled to its cards"),
        "ml/job-claim": ("Pending", "ml/guest must stop first"),
    }
    claim["status"]["admissionChecks"][1]["message"] = "ml/guest must stop first"
    assert "ml/job-claim" not in told(found, text)  # said once
    gone = workload("guest", NPU, 8)
    gone["spec"]["queueName"] = "guests"
    said = told(objects([gone, claim]), text)
    assert said["ml/job-claim"][0] == "Ready"
    assert said["ml/job-guest"][0] == "Retry"


def test_what_can_never_start_is_rejected_with_the_reason() -> None:
    state, message = told(objects([workload("huge", NPU, 8, count=9)]))["ml/job-huge"]
    assert state == "Rejected"
    assert "needs 72 cards of ascend-910b-8, the cluster has 8" in message


def test_a_queue_that_the_file_does_not_name_keeps_its_own_limits() -> None:
    found = dict(objects([workload("large", NPU, 4)], queue="guest"))
    quota = {"flavors": [{"resources": [{"name": NPU, "nominalQuota": "2"}]}]}
    guest = {"metadata": {"name": "guest"}, "spec": {"resourceGroups": [quota]}}
    found[KUEUE, "ClusterQueue"] = [guest]
    state, message = told(found)["ml/job-large"]
    assert state == "Rejected"
    assert "more than the MAX 2 of queue guest" in message


class Client:
    """A dynamic client over these objects: what is read, and what is written."""

    def __init__(self, found: live.Objects, code: int = 0) -> None:
        self.found, self.code = found, code
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.resources = self

    def get(self, api_version: str, kind: str) -> Any:
        from kubernetes.dynamic.exceptions import ResourceNotFoundError

        if (api_version, kind) not in self.found and kind != "Event":
            raise ResourceNotFoundError(kind)
        return Api(self, api_version, kind)


class Api:
    """One kind of it."""

    def __init__(self, client: Client, version: str, kind: str) -> None:
        self.client, self.key, self.status = client, (version, kind), self

    def get(self, **_: Any) -> Any:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"items": list(self.client.found[self.key]), "metadata": {"resourceVersion": "1"}}

    def watch(self, **_: Any) -> list[Any]:
        return [{}]

    def patch(self, body: dict[str, Any], name: str, **_: Any) -> None:
        from kubernetes.client import ApiException

        if self.client.code and self.key[1] == "Workload":
            raise ApiException(status=self.client.code, reason="no")
        self.client.patches.append((name, body))

    def create(self, body: dict[str, Any], namespace: str) -> None:
        self.client.events.append(body)


def test_a_verdict_is_written_beside_the_others_and_said_in_an_event() -> None:
    pytest.importorskip("kubernetes", reason="pip install 'joymigrate[cluster]'")
    client = Client(objects([workload("small", NPU, 2)]))
    [verdict] = checks.serve(client, 1.0, once=True)
    assert (verdict.name, verdict.state) == ("ml/job-small", "Ready")
    (check, active), (name, body) = client.patches
    assert (check, active["status"]["conditions"][0]["type"]) == ("budget", "Active")
    assert (name, body["metadata"]["resourceVersion"]) == ("job-small", "7")
    other, mine = body["status"]["admissionChecks"]
    assert (other["name"], other["state"]) == ("other", "Ready")
    assert (mine["name"], mine["state"]) == ("budget", "Ready")
    [event] = client.events
    assert (event["reason"], event["involvedObject"]["name"]) == (
        "AdmissionCheckReady",
        "job-small",
    )
    changed = Client(objects([workload("small", NPU, 2)]), 409)
    assert list(checks.serve(changed, 1.0, once=True)) == []  # it has changed meanwhile
    assert changed.events == []


def test_when_we_cannot_decide_kueues_own_rules_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes", reason="pip install 'joymigrate[cluster]'")
    looks = []

    def fail(*_: Any) -> Any:
        looks.append(1)
        raise ValueError("a node of an unknown kind")

    monkeypatch.setattr(checks, "decide", fail)
    monkeypatch.setattr(checks.cluster_watch, "SETTLE_S", 0.0)
    client = Client(objects([workload("small", NPU, 2)]))
    verdict = next(checks.serve(client, 1.0))
    assert len(looks) == checks.FAILURES
    assert verdict.state == "Ready"
    assert "Kueue's own rules hold: a node of an unknown kind" in client.events[0]["message"]


def test_a_workload_without_cards_or_without_pods_holds_nobody_up() -> None:
    said = told(objects([workload("prep", "cpu", 4), workload("none", GPU, 8, count=0),
                         workload("small", NPU, 2)]))  # fmt: skip
    assert said["ml/job-prep"] == ("Ready", "it asks for no card")
    assert said["ml/job-none"] == ("Ready", "it asks for no card")
    assert said["ml/job-small"][0] == "Ready"
