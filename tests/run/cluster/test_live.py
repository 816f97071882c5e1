"""Objects of a Kubernetes cluster read as gangs, and the reasons why they wait."""

from __future__ import annotations

from typing import Any

from joymigrate.report import cluster as report
from joymigrate.run.cluster.kubernetes.live import judge, read
from joymigrate.run.cluster.kubernetes.nodes import inventory_of

NOW = 1_800_000_000.0
NPU = "huawei.com/Ascend910"
RINGS = {"accelerator": "huawei-Ascend910", "accelerator-type": "module"}


def node(
    name: str, count: dict[str, str], labels: dict[str, str] | None = None, **more: Any
) -> Any:
    capacity = {"cpu": "64", "memory": "256Gi", **count}
    allocatable = {**capacity, **more.pop("allocatable", {})}
    ready = [{"type": "Ready", "status": more.pop("status", "True")}]
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": more,
        "status": {"capacity": capacity, "allocatable": allocatable, "conditions": ready},
    }


def pod(name: str, asks: dict[str, str], on: str = "", **notes: Any) -> Any:
    labels = notes.pop("labels", {})
    spec = {
        "containers": [{"name": "c", "resources": {"requests": asks, "limits": asks}}],
        **notes.pop("spec", {}),
        **({"nodeName": on} if on else {}),
    }
    says = [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]
    return {
        "metadata": {"name": name, "namespace": "ml", "annotations": notes, "labels": labels},
        "spec": spec,
        "status": {"phase": "Running" if on else "Pending", "conditions": [] if on else says},
    }


def told(nodes: list[Any], pods: list[Any], **more: list[Any]) -> dict[str, Any]:
    objects: dict[tuple[str, str], list[Any]] = {("v1", "Node"): nodes, ("v1", "Pod"): pods}
    versions = {
        "Queue": "scheduling.volcano.sh/v1beta1",
        "Vcjob": "batch.volcano.sh/v1alpha1",
        "Job": "batch/v1",
        "ClusterQueue": "kueue.x-k8s.io/v1beta2",
        "LocalQueue": "kueue.x-k8s.io/v1beta2",
    }
    for kind, items in more.items():
        objects[versions[kind], "Job" if kind == "Vcjob" else kind] = items
    return judge(read(objects, NOW), NOW)


def row(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in data["waiting"] if one["job"] == name)


def test_a_gang_waits_for_cards_and_a_cordoned_node_is_said() -> None:
    gang = {"scheduling.k8s.io/group-name": "c"}
    data = told(
        [node("n1", {NPU: "8"}, RINGS), node("n2", {NPU: "8"}, RINGS, unschedulable=True)],
        [
            pod("a", {NPU: "2"}, "n1", **{"huawei.com/AscendReal": "Ascend910-2,Ascend910-3"}),
            pod("c-0", {NPU: "4"}, **gang),
            pod("c-1", {NPU: "4"}, **gang),
        ],
    )
    waits = row(data, "ml/c")
    assert waits["reason"] == ("needs 8 cards of ascend-910-8, 6 are free, 8 more are out of use")
    assert waits["kubernetes"] == "0/1 nodes are available"
    assert [one["job"] for one in waits["enough"]["ends"]] == ["ml/a"]
    assert data["running"] == ["ml/a"]
    assert "ml/c: waits" in report.live(data)


def test_noted_cards_count_and_others_are_assumed_aloud() -> None:
    pods = [
        pod("a", {NPU: "1"}, "n1", **{"huawei.com/AscendReal": "Ascend910-0"}),
        pod("b", {NPU: "1"}, "n1", **{"huawei.com/AscendReal": "Ascend910-4"}),
        pod("w", {NPU: "4"}),
    ]
    data = told([node("n1", {NPU: "8"}, RINGS)], pods)
    assert row(data, "ml/w")["code"] == "shape"  # three are free in each ring
    assert not [note for note in data["notes"] if "not in the API" in note]
    pods[1]["metadata"]["annotations"] = {}
    data = told([node("n1", {NPU: "8"}, RINGS)], pods)
    assert "fits" in row(data, "ml/w")  # by the rules both would have lain in one ring
    assert [note for note in data["notes"] if "1 running pods" in note]


def test_queues_of_both_engines_keep_gangs_back() -> None:
    volcano = {"metadata": {"name": "q"}, "spec": {"capability": {"nvidia.com/gpu": "4"}}}
    flavor = {"name": "f", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "2"}]}
    kueue = {
        "metadata": {"name": "cq"},
        "spec": {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}]},
    }
    local = {
        "metadata": {"name": "mine", "namespace": "ml"},
        "spec": {"clusterQueue": "cq"},
    }
    data = told(
        [node("g", {"nvidia.com/gpu": "8"})],
        [
            pod("v", {"nvidia.com/gpu": "5"}, **{"scheduling.volcano.sh/queue-name": "q"}),
            pod("k", {"nvidia.com/gpu": "3"}, labels={"kueue.x-k8s.io/queue-name": "mine"}),
        ],
        Queue=[volcano], ClusterQueue=[kueue], LocalQueue=[local],
    )  # fmt: skip
    assert "more than the MAX 4 of queue q" in row(data, "ml/v")["reason"]
    assert "more than the MAX 2 of queue cq" in row(data, "ml/k")["reason"]


def test_jobs_that_have_no_pods_yet_wait_too() -> None:
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    vcjob = {
        "metadata": {"name": "v", "namespace": "ml"},
        "spec": {"queue": "default", "tasks": [{"replicas": 2, "template": template}]},
        "status": {"state": {"phase": "Pending"}},
    }
    job = {
        "metadata": {"name": "s", "namespace": "ml"},
        "spec": {"suspend": True, "parallelism": 1, "template": template},
    }
    over = {**job, "metadata": {"name": "o", "namespace": "ml"}, "spec": {"template": template}}
    data = told([node("g", {"nvidia.com/gpu": "8"})], [], Vcjob=[vcjob], Job=[job, over])
    assert [one["job"] for one in data["waiting"]] == ["ml/v", "ml/s"]
    assert "needs 16 cards of gpu-8, the cluster has 8" in row(data, "ml/v")["reason"]
    assert row(data, "ml/s")["fits"][0]["cards"] == list(range(8))


def test_the_rest_of_a_gang_waits_and_pods_without_cards_take_cpu() -> None:
    gang = {"labels": {"job-name": "j"}}
    data = told(
        [node("g", {"nvidia.com/gpu": "8"})],
        [
            pod("j-0", {"nvidia.com/gpu": "4"}, "g", **gang),
            pod("j-1", {"nvidia.com/gpu": "4", "cpu": "8"}, **gang),
            pod("web", {"cpu": "60"}, "g"),
        ],
    )
    assert data["running"] == ["ml/j"]
    assert row(data, "ml/j (rest)")["code"] == "cpu"


def test_what_is_not_looked_at_is_said() -> None:
    taints = [{"key": "night", "effect": "NoSchedule"}]
    nodes = [
        node("g1", {"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "7"}, taints=taints),
        node("g2", {"nvidia.com/gpu": "8"}, {"zone": "x"}),
        node("g3", {"nvidia.com/gpu": "72"}),
        node("down", {"nvidia.com/gpu": "8"}, status="Unknown"),
    ]
    data = told(nodes, [pod("gone", {"nvidia.com/gpu": "1"}, "g9")])
    notes = "\n".join(data["notes"])
    assert "ml/gone has pods on nodes that are not there" in notes
    assert "g3: 72 cards of nvidia.com/gpu, of which 16 are looked at" in notes
    ready = {one.name: (one.ready, one.unhealthy) for one in inventory_of(nodes, {}).nodes}
    assert (ready["g1"], ready["down"][0]) == ((True, (7,)), False)


def test_selectors_affinity_and_taints_narrow_the_nodes() -> None:
    night = [{"key": "night", "value": "yes", "effect": "NoSchedule"}]
    nodes = [
        node("a", {"nvidia.com/gpu": "8"}, {"zone": "x"}),
        node("b", {"nvidia.com/gpu": "8"}, {"zone": "y"}, taints=night),
    ]

    def where(**spec: Any) -> str:
        one = row(told(nodes, [pod("p", {"nvidia.com/gpu": "1"}, spec=spec)]), "ml/p")
        return str(one["fits"][0]["node"]) if "fits" in one else str(one["reason"])

    def affinity(operator: str, *values: str) -> dict[str, Any]:
        one = {"key": "zone", "operator": operator, "values": list(values)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [one]}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    nowhere = "no node offers nvidia.com/gpu where its selector and tolerations allow it"
    bears = [{"key": "night", "operator": "Exists"}]
    wrong = [{"key": "night", "operator": "Equal", "value": "no"}]
    assert where() == "a"
    assert where(nodeSelector={"zone": "z"}) == nowhere
    assert where(nodeSelector={"zone": "y"}) == nowhere
    assert where(nodeSelector={"zone": "y"}, tolerations=bears) == "b"
    assert where(nodeSelector={"zone": "y"}, tolerations=wrong) == nowhere
    assert where(affinity=affinity("NotIn", "x"), tolerations=bears) == "b"
    assert where(affinity=affinity("In", "y")) == nowhere
    assert where(affinity=affinity("DoesNotExist")) == nowhere
    assert where(affinity=affinity("Exists")) == "a"
