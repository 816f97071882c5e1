"""`apply` and `watch` against a real Kubernetes API server: JOYMIGRATE_KUBECONFIG names its file.

The server needs the definitions of Volcano and nothing else: no controller and no kubelet run.
docs/how-to/contributing.md says where one can be had.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster.kubernetes import apply as applying
from joymigrate.run.cluster.kubernetes.cluster_watch import fetch, watch
from joymigrate.run.cluster.kubernetes.renderers import render
from joymigrate.run.cluster.kubernetes.validate import ManifestObject
from tests.run.cluster.cases import nodes, workload

CONFIG = os.environ.get("JOYMIGRATE_KUBECONFIG", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CONFIG, reason="JOYMIGRATE_KUBECONFIG names no API server"),
]
JOBS = """
queues: [{name: research, min: {npu: 8}, max: {npu: 16}}]
jobs:
- {name: train, kind: ascend-910-8, pods: 2, cards_per_pod: 4, queue: research, priority: 5,
   image: busybox, command: sleep 10}
"""
RINGS = {"accelerator": "huawei-Ascend910", "accelerator-type": "module"}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KUBECONFIG", CONFIG)
    return applying.connect(None)


@pytest.fixture
def server(client: Any) -> Iterator[Any]:
    """Two nodes that nobody runs, in a namespace of its own; all of it goes at the end."""
    from kubernetes.client import CoreV1Api

    core, space = CoreV1Api(client.client), f"joy-{uuid4().hex[:8]}"
    core.create_namespace({"metadata": {"name": space}})
    cards = {"cpu": "64", "memory": "256Gi", "pods": "110", "huawei.com/Ascend910": "8"}
    names = [f"{space}-{number}" for number in range(2)]
    for name in names:
        core.create_node({"metadata": {"name": name, "labels": {**RINGS, "set": space}}})
        core.patch_node_status(name, {"status": {"capacity": cards, "allocatable": cards}})
    core.patch_node(names[1], {"spec": {"unschedulable": True}})
    yield core, space, names
    for name in names:
        core.delete_node(name)
    core.delete_namespace(space)


def pod(space: str, name: str, cards: int, on: str = "") -> dict[str, Any]:
    asks = {"huawei.com/Ascend910": str(cards)}
    spec: dict[str, Any] = {
        "nodeSelector": {"set": space},
        "containers": [
            {"name": "c", "image": "busybox", "resources": {"requests": asks, "limits": asks}}
        ],
    }
    return {"metadata": {"name": name}, "spec": {**spec, **({"nodeName": on} if on else {})}}


def test_what_is_rendered_is_taken_and_taken_again(client: Any) -> None:
    cluster = nodes("[{name: n1, kind: ascend-910-8, leaf: l0}]")
    made = render(workload(JOBS), cluster, "volcano").objects
    ours = [one for one in made if one["metadata"].get("namespace") != "volcano-system"]
    documents = [ManifestObject("here", one) for one in ours]
    for _ in range(2):
        outcomes = [one.outcome for one in applying.apply(documents, None, False)]
        assert outcomes == ["applied"] * len(documents)
    unknown = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"nope": 1}}
    with pytest.raises(JoyError, match="field not declared in schema"):
        list(applying.apply([ManifestObject("here", unknown)], None, True))


def test_a_waiting_pod_gets_its_reason_and_a_new_one_when_something_ends(
    client: Any, server: Any
) -> None:
    core, space, (first, _) = server
    core.create_namespaced_pod(space, pod(space, "runs", 6, first))
    core.create_namespaced_pod(space, pod(space, "waits", 4))
    looks = watch(client, 20.0)
    (row,) = [one for one in next(looks)["waiting"] if one["job"] == f"{space}/waits"]
    assert "2 are free" in row["reason"]
    assert "more are out of use" in row["reason"]  # the cordoned node's
    assert {"job": f"{space}/runs", "in_s": None} in row["enough"]["ends"]
    core.delete_namespaced_pod("runs", space, grace_period_seconds=0)
    (row,) = [one for one in next(looks)["waiting"] if one["job"] == f"{space}/waits"]
    assert [one["cards"] for one in row["fits"]] == [[0, 1, 2, 3]]
    assert ("v1", "Node") in fetch(client)


def test_a_page_of_objects_is_not_all_of_them(
    client: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, space, _ = server
    for number in range(5):
        core.create_namespaced_pod(space, pod(space, f"p{number}", 1))
    monkeypatch.setattr("joymigrate.run.cluster.kubernetes.cluster_watch.PAGE", 2)
    found = {one["metadata"]["name"] for one in fetch(client)["v1", "Pod"]}
    assert {f"p{number}" for number in range(5)} <= found


def test_the_file_is_there() -> None:
    assert Path(CONFIG).is_file()
