"""One job for every back end: what each manifest says, and what it admits that it cannot."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster.kubernetes import renderers
from joymigrate.run.cluster.kubernetes.validate import ManifestObject, check, schemas
from tests.run.cluster.cases import nodes, workload

SCHEMAS = schemas()
KINDS = {
    "kueue": "Job",
    "jobset": "JobSet",
    "rayjob": "RayJob",
    "raycluster": "RayCluster",
    "pytorchjob": "PyTorchJob",
    "trainjob": "TrainJob",
    "leaderworkerset": "LeaderWorkerSet",
    "volcano": "Job",
    "mindcluster": "Job",
}
GANG = """
jobs:
- {name: gang, kind: gpu-8, pods: 4, cards_per_pod: 8, leaf: one, retries: 2, image: "x:1",
   command: "python train.py 'a b'", env: {A: "b c"}, time_limit_minutes: 90, priority: 7}
"""
PODS = """
- {name: tray, kind: gpu-nvl72-4, count: 36, per_superpod: 18}
"""


def render(text: str, engine: str, cluster: str = "") -> renderers.RenderedObjects:
    return renderers.render(workload(text), nodes(cluster) if cluster else None, engine)


def only(made: renderers.RenderedObjects, kind: str) -> dict[str, Any]:
    (one,) = [item for item in made.objects if item["kind"] == kind]
    return one


def values(item: Any, key: str) -> list[Any]:
    """Every value under a key, at any depth."""
    if isinstance(item, list):
        return [found for one in item for found in values(one, key)]
    if not isinstance(item, dict):
        return []
    mine = [item[key]] if key in item else []
    return mine + [found for one in item.values() for found in values(one, key)]


@pytest.mark.parametrize("engine", KINDS)
def test_every_engine_carries_image_cards_variables_and_gang(engine: str) -> None:
    pytest.importorskip("kubernetes_validate", reason="pip install 'joymigrate[cluster]'")
    made = render(GANG, engine, "- {name: g, kind: gpu-8, count: 8, per_leaf: 4}")
    problems = check([ManifestObject("test", item) for item in made.objects], SCHEMAS).problems
    assert [str(problem) for problem in problems] == []
    job = only(made, KINDS[engine])
    assert "x:1" in values(job, "image")
    cards = [one for one in values(job, "limits") if "nvidia.com/gpu" in one]
    assert cards
    assert all(one["nvidia.com/gpu"] == "8" for one in cards)
    assert {"name": "A", "value": "b c"} in [e for env in values(job, "env") for e in env]
    if engine not in ("leaderworkerset", "raycluster"):
        assert 5400 in values(job, "activeDeadlineSeconds")
    else:
        assert any("time_limit_minutes" in note for note in made.notes)
    if engine not in ("volcano", "mindcluster"):
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"
        assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "joymigrate-7"
        place = {"kueue.x-k8s.io/podset-required-topology": "joymigrate.io/leaf"}
        assert any(place.items() <= one.items() for one in values(job, "annotations"))


def pods(job: dict[str, Any]) -> int:
    """Pods of a rendered job, counted from its own fields."""
    spec = job["spec"]
    if job["kind"] == "JobSet":
        parts = spec["replicatedJobs"]
        return sum(part["replicas"] * part["template"]["spec"]["completions"] for part in parts)
    if job["kind"] == "PyTorchJob":
        return sum(one["replicas"] for one in spec["pytorchReplicaSpecs"].values())
    if job["kind"] == "TrainJob":
        return int(spec["trainer"]["numNodes"])
    if job["kind"] == "LeaderWorkerSet":
        return int(spec["replicas"] * spec["leaderWorkerTemplate"]["size"])
    return sum(group["replicas"] for group in values(spec, "workerGroupSpecs")[0])


@pytest.mark.parametrize("engine", list(KINDS)[1:7])
def test_no_pod_is_lost(engine: str) -> None:
    for number in (1, 2, 5):
        text = f"jobs: [{{name: j, kind: gpu-8, pods: {number}, cards_per_pod: 8}}]"
        assert pods(only(render(text, engine), KINDS[engine])) == number


@pytest.mark.parametrize("engine", [*KINDS, "slurm"])
def test_what_an_engine_cannot_say_is_a_note(engine: str) -> None:
    text = """
    jobs:
    - {name: first, kind: gpu-8, cards_per_pod: 8}
    - {name: second, kind: gpu-8, pods: 4, cards_per_pod: 8, after: [first], min_pods: 2,
       numa: one, sp_block: 16, leaf: one, time_limit_minutes: 5, grace_s: 20}
    """
    made = render(text, engine)
    says = renderers.engines()[engine].SAYS
    assert says <= {*renderers.KEYS}
    for key in {*renderers.KEYS} - says:
        assert any(f"`{key}` is not expressible" in note for note in made.notes), key


def test_a_block_lies_in_one_super_pod() -> None:
    text = "jobs: [{name: j, kind: gpu-nvl72-4, pods: 32, cards_per_pod: 4, sp_block: 64}]"
    job = only(render(text, "jobset", PODS), "JobSet")
    (place,) = values(job, "annotations")
    assert place["kueue.x-k8s.io/podset-slice-required-topology"] == "joymigrate.io/superpod"
    assert place["kueue.x-k8s.io/podset-slice-size"] == "16"
    vcjob = only(render(text, "volcano", PODS), "Job")
    (parts,) = values(vcjob, "partitionPolicy")
    assert (parts["totalPartitions"], parts["partitionSize"]) == (2, 16)
    assert "#SBATCH --segment=16" in render(text, "slurm", PODS).text
    whole = text.replace("sp_block: 64", "sp_block: 128")
    (place,) = values(only(render(whole, "jobset", PODS), "JobSet"), "annotations")
    assert place == {"kueue.x-k8s.io/podset-required-topology": "joymigrate.io/superpod"}


@pytest.mark.parametrize(
    ("share", "kind", "engine", "asks"),
    [
        ("0.25", "kind: gpu-8", "kueue", {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "25",
                                          "nvidia.com/gpumem-percentage": "25"}),
        ("0.251", "kind: gpu-8", "volcano", {"volcano.sh/vgpu-number": "1",
                                             "volcano.sh/vgpu-memory-percentage": "26",
                                             "volcano.sh/vgpu-cores": "26"}),
        ("0.2", "kind: ascend-910b-8, models: [910B3]", "volcano",
         {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "16384"}),
        ("0.2", "kind: ascend-910b-8, models: [910B4]", "jobset",
         {"huawei.com/Ascend910B4": "1", "huawei.com/Ascend910B4-memory": "8192"}),
    ],
)  # fmt: skip
def test_a_share_is_asked_of_the_engines_sharer(
    share: str, kind: str, engine: str, asks: dict[str, str]
) -> None:
    made = render(f"jobs: [{{name: j, {kind}, cards_per_pod: {share}}}]", engine)
    (limits,) = values(only(made, KINDS[engine]), "limits")
    assert limits == asks
    assert any("do not count shares" in note for note in made.notes)
    if engine == "volcano":
        assert any("must load" in note and "deviceshare" in note for note in made.notes)


@pytest.mark.parametrize(
    ("job", "engine", "what"),
    [
        ("kind: ascend-910b-8, cards_per_pod: 0.2", "volcano", "names no model"),
        ("kind: ascend-910b-8, models: [910B3], cards_per_pod: 0.7", "kueue", "no part of a"),
        ("kind: ascend-a3-16, cards_per_pod: 0.5", "volcano", "nothing is known about shares"),
        ("tasks: [{name: a, kind: gpu-8, cards_per_pod: 1}, {name: b, kind: gpu-8, "
         "cards_per_pod: 2}]", "trainjob", "2 kinds of pods"),
        ("tasks: [{name: a, kind: gpu-8, pods: 2, cards_per_pod: 1}, {name: b, kind: gpu-8, "
         "cards_per_pod: 2}]", "leaderworkerset", "one leader"),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered_is_refused(job: str, engine: str, what: str) -> None:
    with pytest.raises(JoyError, match=what):
        render(f"jobs: [{{name: j, {job}}}]", engine)


def test_two_jobs_of_one_rendered_name_are_refused() -> None:
    text = "jobs: [{name: a_b, kind: gpu-8}, {name: A-b, kind: gpu-8}]"
    with pytest.raises(JoyError, match="would be called 'a-b'"):
        render(text, "volcano")


@pytest.mark.parametrize(("engine", "most"), [("rayjob", 47), ("jobset", 63)])
def test_a_name_that_becomes_too_long_is_found(engine: str, most: int) -> None:
    made = render(f"jobs: [{{name: {'a' * 60}, kind: gpu-8, cards_per_pod: 1}}]", engine)
    documents = [ManifestObject("test", only(made, KINDS[engine]))]
    assert any(f"at most {most}" in p.help for p in check(documents, SCHEMAS).problems)


def test_slurm_gets_one_script_that_a_shell_reads() -> None:
    text = """
    queues: [{name: q, max: {gpu: 16}}]
    jobs:
    - {name: last, kind: gpu-8, pods: 2, cards_per_pod: 8, after: [afterany:first], queue: q,
       command: "echo 'a $b'", leaf: one, time_limit_minutes: 1.2, cpu_per_pod: 1.5}
    - {name: first, kind: ascend-910b-8, pods: 4, cards_per_pod: 8, min_pods: 2}
    - {name: rl, tasks: [{name: a, kind: gpu-8, cards_per_pod: 1},
                         {name: b, kind: ascend-910b-8, pods: 2, cards_per_pod: 2}]}
    """
    made = render(text, "slurm", "- {name: g, kind: gpu-8, count: 4, per_leaf: 2}\n"
                                 "- {name: o, kind: ascend-910b-8, count: 2}")  # fmt: skip
    assert made.objects == []
    subprocess.run(["bash", "-n"], input=made.text, text=True, check=True)
    lines = made.text.splitlines()
    after = 'job_0=$(sbatch --parsable --dependency="afterany:$job_1" <<'
    begins = [line.partition("'")[0] for line in lines]
    assert begins.index(after) > begins.index("job_1=$(sbatch --parsable <<")
    for wanted in (
        "#SBATCH --gres=gpu:8", "#SBATCH --gres=npu:8", "#SBATCH --nodes=2-4", "#SBATCH --time=2",
        "#SBATCH --switches=1", "#SBATCH --qos=q", "#SBATCH hetjob", "#SBATCH --cpus-per-task=2",
        "# sacctmgr -i add qos q set Priority=0 GrpTRES=gres/gpu=16",
        "# NodeName=o-0 Gres=npu:8 Feature=ascend-910b-8",
        "# SwitchName=top Switches=g-leaf0,g-leaf1,no-leaf",
    ):  # fmt: skip
        assert wanted in lines, wanted
    assert "exec \"$@\"' pod echo 'a $b'" in made.text
    assert "srun --het-group=0-1" in made.text


def test_volcano_restarts_an_evicted_job_as_often_as_it_may_fail() -> None:
    text = "jobs: [{{name: j, kind: gpu-8, cards_per_pod: 8, retries: {}}}]"
    never = only(render(text.format(0), "volcano"), "Job")["spec"]
    assert never["maxRetry"] > 100
    assert {"event": "PodFailed", "action": "AbortJob"} in never["policies"]
    made = render(text.format(2), "volcano")
    # The controller fails the job when its count has reached maxRetry.
    assert only(made, "Job")["spec"]["maxRetry"] == 3
    assert any("an eviction counts" in note for note in made.notes)


@pytest.mark.parametrize("engine", ["volcano", "mindcluster"])
def test_a_job_ships_no_settings_of_the_scheduler(engine: str) -> None:
    made = render(GANG.replace("gpu-8", "ascend-910b-8"), engine)
    assert not [item for item in made.objects if item["kind"] == "ConfigMap"]
    assert any("must load" in note for note in made.notes)


@pytest.mark.parametrize("engine", [*KINDS, "slurm"])
def test_lost_rings_are_a_note(engine: str) -> None:
    text = "jobs: [{{name: j, kind: ascend-910-8, cards_per_pod: {}}}]"
    lost = [note for note in render(text.format(4), engine).notes if "different rings" in note]
    assert bool(lost) is (engine != "mindcluster")
    assert not [n for n in render(text.format(8), engine).notes if "different rings" in n]


def test_a_limit_of_a_family_over_two_resources_is_a_note() -> None:
    text = """
    queues: [{name: q, min: {npu: 8}}]
    jobs: [{name: j, kind: ascend-910b-8, cards_per_pod: 8, queue: q}]
    """
    cluster = "- {name: a, kind: ascend-910b-8}\n- {name: d, kind: ascend-310p-duo-8}"
    made = render(text, "volcano", cluster)
    assert any("their sum is not expressible" in note for note in made.notes)


@pytest.mark.parametrize(
    ("kind", "cards", "labels"),
    [
        ("ascend-910b-8", 8, {"ring-controller.atlas": "ascend-910b"}),
        ("ascend-910-8", 4, {"ring-controller.atlas": "ascend-910"}),
        ("ascend-310p-duo-8", 2, {"npu-310-strategy": "card", "duo": "true"}),
    ],
)
def test_mindclusters_plug_in_reads_labels(kind: str, cards: int, labels: dict[str, str]) -> None:
    job = only(render(f"jobs: [{{name: j, kind: {kind}, cards_per_pod: {cards}}}]",
                      "mindcluster"), "Job")  # fmt: skip
    assert labels.items() <= job["metadata"]["labels"].items()
    assert labels.items() <= job["spec"]["tasks"][0]["template"]["metadata"]["labels"].items()
