"""Rendered manifests are valid; invalid ones are found, with path and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.errors import JoyError
from joymigrate.run.cluster.kubernetes import quantity, renderers, strict, webhooks
from joymigrate.run.cluster.kubernetes.validate import ManifestCheck, ManifestObject, check, schemas
from tests.run.cluster.cases import nodes, workload

SCHEMAS = schemas()
NODES = """
- {name: a3, kind: ascend-a3-16, count: 4, per_leaf: 2, leaves_per_spine: 2, per_superpod: 4}
- {name: g, kind: gpu-8, count: 2, per_leaf: 2}
- {name: o, kind: ascend-910-8, count: 2}
"""
WORK = """
queues:
- {name: q, min: {npu: 8}, max: {npu: 12, gpu: 8}}
- {name: r, max: 10, parent: q, eviction: never}
jobs:
- {name: j1, kind: ascend-910-8, pods: 2, cards_per_pod: 4, queue: r, minutes: 30, priority: 7,
   command: python train.py, cpu_per_pod: 8, memory_gib_per_pod: 64, env: {A: b}, image: x:1}
- {name: J_2, kind: ascend-a3-16, pods: 4, cards_per_pod: 16, sp_block: 32, queue: q, leaf: fill}
- {name: j3, kind: gpu-8, pods: 4, cards_per_pod: 4, leaf: one, retries: 2}
- {name: low, cards_per_pod: 1, kind: gpu-8, priority: -3}
- {name: rl, tasks: [{name: a, kind: gpu-8, pods: 2, cards_per_pod: 4},
                     {name: b, kind: ascend-910-8, cards_per_pod: 8}]}
"""


def found(*objects: dict[str, Any]) -> ManifestCheck:
    return check([ManifestObject("test", item) for item in objects], SCHEMAS)


def manifest(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


ENGINES = ["volcano", "kueue", "mindcluster", "jobset", "rayjob", "raycluster"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("with_nodes", [True, False])
def test_every_rendered_object_is_valid(engine: str, with_nodes: bool) -> None:
    pytest.importorskip("kubernetes_validate", reason="pip install 'joymigrate[cluster]'")
    made = renderers.render(workload(WORK), nodes(NODES) if with_nodes else None, engine)
    checked = found(*made.objects)
    assert [str(problem) for problem in checked.problems] == []
    assert checked.objects > 8
    assert any("not expressible" in note for note in made.notes)


def test_volcano_gets_min_as_guarantee_and_max_as_capability() -> None:
    made = renderers.render(workload(WORK), nodes(NODES), "volcano").objects
    queue = next(o for o in made if o["kind"] == "Queue" and o["metadata"]["name"] == "q")
    assert queue["spec"]["guarantee"] == {"resource": {"huawei.com/Ascend910": "8"}}
    assert queue["spec"]["capability"]["nvidia.com/gpu"] == "8"
    gang = next(o for o in made if o["metadata"]["name"] == "j3")
    assert gang["spec"]["minAvailable"] == 4
    assert gang["spec"]["networkTopology"] == {"mode": "hard", "highestTierAllowed": 1}


def test_mindcluster_reads_its_policy_and_block_from_annotations() -> None:
    made = renderers.render(workload(WORK), nodes(NODES), "mindcluster").objects
    jobs = {o["metadata"]["name"]: o for o in made if o["kind"] == "Job"}
    block = jobs["j-2"]["metadata"]
    assert block["annotations"]["sp-block"] == "32"
    assert block["annotations"]["huawei.com/schedule_policy"] == "chip2-node16-sp"
    assert block["labels"]["tor-affinity"] == "large-model-schema"
    pod = jobs["j1"]["spec"]["tasks"][0]["template"]["spec"]
    assert pod["nodeSelector"]["accelerator-type"] == "module"
    assert "annotations" not in jobs["j3"]["metadata"]


def test_what_the_plug_in_would_refuse_is_refused() -> None:
    odd = "jobs: [{name: j, kind: ascend-910-8, cards_per_pod: 3}]"
    with pytest.raises(JoyError, match="3 cards per pod"):
        renderers.render(workload(odd), None, "mindcluster")
    share = "jobs: [{name: j, kind: gpu-8, cards_per_pod: 0.5}]"
    with pytest.raises(JoyError, match="share of a card"):
        renderers.render(workload(share), None, "slurm")
    with pytest.raises(JoyError, match="Did you mean 'kueue'"):
        renderers.render(workload(odd), None, "queue")


JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: j}
spec:
  minAvailable: 1
  tasks:
  - name: a
    replicas: 2
    template: {spec: {containers: [{name: c, image: i}]}}
"""


def changed(path: str, value: Any) -> dict[str, Any]:
    item = manifest(JOB)[0]
    at: Any = item
    *way, last = path.split(".")
    for key in way:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = value
    return item


@pytest.mark.parametrize(
    ("path", "value", "where", "help"),
    [
        ("spec.tasks.0.template.spec.priorityClass", "x", "priorityClass", "priorityClassName"),
        ("spec.tasks.0.template.spec.imagePullPolicy", "Always", "imagePullPolicy", ""),
        ("spec.minAvailable", 5, "spec.minAvailable", "at most 2"),
        ("spec.minAvailable", "5", "spec.minAvailable", "type integer"),
        ("spec.tasks.0.minAvailable", 3, "spec.tasks[0].minAvailable", "at most 2"),
        ("spec.policies", [{"event": "PodFail"}], "spec.policies[0].event", "one of"),
        ("spec.networkTopology", {"highestTierAllowed": 1, "highestTierName": "x"}, "spec", "keep"),
        (
            "spec.tasks.0.partitionPolicy",
            {"totalPartitions": 3, "partitionSize": 1},
            "parti",
            "rep",
        ),
        ("spec.quue", "x", "spec.quue", "queue"),
        ("apiVersion", "batch.volcano.sh/v1", "apiVersion", "v1alpha1"),
        ("kind", "Jb", "kind", "Job"),
        ("metadata.spec", {}, "metadata.spec", ""),
    ],
)
def test_a_mistake_in_a_job_is_found_with_its_path_and_remedy(
    path: str, value: Any, where: str, help: str
) -> None:
    assert found(*manifest(JOB)).problems == ()
    problems = found(changed(path, value)).problems
    assert any(where in p.path and help in p.help for p in problems), [str(p) for p in problems]


def test_queues_are_checked_against_each_other() -> None:
    text = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: top}
spec: {weight: 1, guarantee: {resource: {nvidia.com/gpu: 8}}, capability: {nvidia.com/gpu: 4}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: a}
spec: {parent: top, guarantee: {resource: {nvidia.com/gpu: "9"}}, capability: {nvidia.com/gpu: 5}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: self}
spec: {parent: self, deserved: {cpu: 500m}, capability: {cpu: "0.4"}}
"""
    words = " ".join(str(problem) for problem in found(*manifest(text)).problems)
    for expected in (
        "less than its guarantee 8",
        "its parent top has 4",
        "the children add up to 9",
        "own parent",
        "more than its capability 0.4",
    ):
        assert expected in words, words


def test_hyper_nodes_and_cluster_queues() -> None:
    member = {"type": "Node", "selector": {"exactMatch": {"name": "a"}, "labelMatch": {}}}
    hyper = {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": "h"},
        "spec": {"tier": 1, "members": [member]},
    }
    assert any("exactly one" in p.help for p in found(hyper).problems)
    flavor = {"name": "f", "resources": [{"name": "cpu", "nominalQuota": 1, "lendingLimit": 2}]}
    group = {"coveredResources": ["cpu"], "flavors": [flavor]}
    queue = {"spec": {"resourceGroups": [group]}, "metadata": {"name": "q"}}
    broken = [what for _, _, what, _ in webhooks.cluster_queues([queue])]
    assert broken == ["lendingLimit without a cohort", "lends 2 of 1"]


def test_core_kinds_are_checked_strictly() -> None:
    pytest.importorskip("kubernetes_validate", reason="pip install 'joymigrate[cluster]'")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "priorityClass": "x"},
    }
    assert "priorityClass" in str(found(pod).problems[0])


def test_the_users_own_definitions_replace_ours(tmp_path: Path) -> None:
    own = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "jobs.batch.volcano.sh"},
        "spec": {
            "group": "batch.volcano.sh",
            "names": {"kind": "Job"},
            "versions": [{"name": "v9", "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    }
    (tmp_path / "crd.yaml").write_text(yaml.safe_dump(own))
    known = schemas(tmp_path)
    assert list(known["batch.volcano.sh", "Job"]) == ["v9"]
    assert ("kueue.x-k8s.io", "ClusterQueue") in known


def test_quantities() -> None:
    assert quantity.parse("500m") == 0.5
    assert quantity.parse("2Gi") == 2**31
    assert quantity.parse("1e3") == 1000
    assert quantity.parse("many") is None


def test_patterns_that_python_cannot_read_are_not_held_against_anybody() -> None:
    assert strict.matches(r"^\p{L}+$", "x")


@pytest.mark.parametrize(
    ("metadata", "says"),
    [({}, "is missing"), ({"name": "Tr_X"}, "'Tr_X'"), ({"name": "a..b"}, "'a..b'")],
)
def test_a_name_that_the_api_server_refuses_is_found(metadata: dict[str, str], says: str) -> None:
    raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    assert [says in str(problem) for problem in found(raw).problems] == [True]
    assert not found({**raw, "metadata": {"generateName": "a-"}}).problems


def test_a_count_of_the_wrong_type_is_one_problem() -> None:
    task = {"name": "w", "replicas": "two", "minAvailable": 2, "template": {}}
    raw = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"minAvailable": 2, "tasks": [task]},
    }
    assert [problem.path for problem in found(raw).problems] == ["spec.tasks[0].replicas"]
