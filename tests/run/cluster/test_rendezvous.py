"""Two pods, or sixteen, are one world on every engine, read by torchrun's own parser."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.cluster.kubernetes import renderers
from tests.run.cluster.cases import workload

JOB = (
    "jobs: [{{name: gang, kind: {kind}, pods: {pods}, cards_per_pod: {cards}, command: {command}}}]"
)
INDEX = re.compile(r"metadata\.annotations\['(.+)'\]")
# What the engine's controller writes on pod number N, by which a manifest may refer to it:
# Volcano, pkg/controllers/job/job_controller_util.go; Kubernetes, indexed Jobs; LeaderWorkerSet.
NOTES = {"volcano.sh/task-index", "batch.kubernetes.io/job-completion-index"}
# Engines that set the variables themselves, or whose pods are no world of torch's.
BY_CONTROLLER = {"pytorchjob", "trainjob"}
ON_RAY = {"rayjob", "raycluster"}
OURS = sorted(set(renderers.engines()) - BY_CONTROLLER - ON_RAY - {"slurm"})


def render(
    engine: str, pods: int, cards: int = 1, kind: str = "gpu-8"
) -> renderers.RenderedObjects:
    text = JOB.format(kind=kind, pods=pods, cards=cards, command="torchrun train.py")
    return renderers.render(workload(text), None, engine)


def templates(item: Any) -> list[dict[str, Any]]:
    """Every pod spec of an object."""
    if isinstance(item, list):
        return [found for one in item for found in templates(one)]
    if not isinstance(item, dict):
        return []
    if "containers" in item:
        return [item]
    return [found for one in item.values() for found in templates(one)]


def first_host(engine: str, made: renderers.RenderedObjects) -> str:
    """The name under which the engine makes pod 0 known."""
    if engine == "kueue":
        (service,) = [item for item in made.objects if item["kind"] == "Service"]
        (job,) = [item for item in made.objects if item["kind"] == "Job"]
        assert service["spec"]["selector"] == {
            "batch.kubernetes.io/job-name": job["metadata"]["name"]
        }
        (spec,) = templates(job)
        assert spec["subdomain"] == service["metadata"]["name"]
        return f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    if engine == "jobset":
        (job,) = [item for item in made.objects if item["kind"] == "JobSet"]
        name = job["metadata"]["name"]
        return f"{name}-{job['spec']['replicatedJobs'][0]['name']}-0-0.{name}"
    if engine == "leaderworkerset":
        return "leader"
    (job,) = [item for item in made.objects if item["kind"] == "Job"]
    assert "svc" in job["spec"]["plugins"]
    name = job["metadata"]["name"]
    return f"{name}-{job['spec']['tasks'][0]['name']}-0.{name}"


def environment(made: renderers.RenderedObjects, rank: int, pods: int) -> dict[str, str]:
    """The variables of pod number `rank`, as the engine would fill them in."""
    (spec,) = [one for item in made.objects for one in templates(item)]
    lws = {"LWS_GROUP_SIZE": str(pods), "LWS_LEADER_ADDRESS": "leader",
           "LWS_WORKER_INDEX": str(rank)}  # fmt: skip
    found: dict[str, str] = {}
    for one in spec["containers"][0]["env"]:
        if "valueFrom" in one:
            match = INDEX.fullmatch(one["valueFrom"]["fieldRef"]["fieldPath"])
            assert match is not None
            assert match.group(1) in NOTES
            found[one["name"]] = str(rank)
        else:
            text = one["value"]
            for name, value in lws.items():
                text = text.replace(f"$({name})", value)
            found[one["name"]] = text
    return found


@pytest.mark.parametrize("pods", [2, 16])
@pytest.mark.parametrize("engine", OURS)
def test_torchrun_reads_one_world(engine: str, pods: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import run

    made = render(engine, pods, cards=8)
    ranks = set()
    for rank in range(pods):
        given = environment(made, rank, pods)
        for name in [name for name in os.environ if name.startswith("PET_")]:
            monkeypatch.delenv(name)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        told = run.get_args_parser().parse_args(["train.py"])
        config, _, _ = run.config_from_args(told)
        assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (pods, pods, 8)
        assert config.rdzv_backend == "static"
        assert config.rdzv_endpoint == f"{first_host(engine, made)}:{given['MASTER_PORT']}"
        ranks.add(config.rdzv_configs["rank"])
        assert (given["WORLD_SIZE"], given["RANK"]) == (str(pods), str(rank))
    assert ranks == set(range(pods))


PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([1.0])
dist.all_reduce(x)
print("world", dist.get_world_size(), int(x))
"""


def run_pods(given: list[Mapping[str, str]], program: Path, *how: str) -> list[str]:
    """What each pod's command prints, all running at once on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, *how, str(program)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **one, "MASTER_ADDR": "127.0.0.1", "PET_MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port, "PET_MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
        )
        for one in given
    ]  # fmt: skip
    return [one.communicate(timeout=600)[0] for one in started]


@pytest.mark.dear
@pytest.mark.parametrize("how", [(), ("-m", "torch.distributed.run")])
def test_two_pods_train_together(tmp_path: Path, how: tuple[str, ...]) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    made = render("volcano", 2)
    said = run_pods([environment(made, rank, 2) for rank in range(2)], program, *how)
    assert [one.strip() for one in said] == ["world 2 2"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("engine", OURS)
def test_sixteen_pods_train_together(engine: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    made = render(engine, 16)
    said = run_pods([environment(made, rank, 16) for rank in range(16)], program)
    assert [one.strip() for one in said] == ["world 16 16"] * 16


@pytest.mark.parametrize("engine", sorted(renderers.engines()))
def test_one_pod_is_left_alone(engine: str) -> None:
    if engine == "leaderworkerset":
        pytest.skip("a set's pods always get the names of its leader")
    made = render(engine, 1)
    names = [one["name"] for item in made.objects for spec in templates(item)
             for one in spec["containers"][0].get("env", [])]  # fmt: skip
    assert not {"MASTER_ADDR", "PET_NNODES"} & set(names)


def test_the_variables_of_several_tasks_are_a_note() -> None:
    text = """
    jobs:
    - name: rl
      tasks: [{name: actor, kind: gpu-8, cards_per_pod: 1},
              {name: learner, kind: gpu-8, pods: 2, cards_per_pod: 2}]
    """
    for engine in ("volcano", "jobset"):
        made = renderers.render(workload(text), None, engine)
        assert any("RANK and WORLD_SIZE are not set" in note for note in made.notes)


def test_a_script_of_slurm_starts_one_world(tmp_path: Path) -> None:
    """The script's own lines run, with stand-ins for the three commands that only Slurm has."""
    text = JOB.format(kind="gpu-8", pods=2, cards=8, command="env")
    script = renderers.render(workload(text), None, "slurm").text
    begin = script.index("#!/bin/bash", 1)
    job = script[begin : script.index("END_OF_JOB\n", begin)]
    stand_ins = {"scontrol": "printf 'a\\nb\\n'", "srun": 'shift; exec "$@"'}
    for name, line in stand_ins.items():
        tool = tmp_path / name
        tool.write_text(f"#!/bin/bash\n{line}\n")
        tool.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    given = {"PATH": path, "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_NODELIST": "x"}
    done = subprocess.run(
        ["bash", "-c", job], env=given, capture_output=True, text=True, check=True
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert found["PET_NNODES"] == found["WORLD_SIZE"] == "2"
    assert found["PET_NODE_RANK"] == found["RANK"] == "1"
    assert found["PET_MASTER_ADDR"] == found["MASTER_ADDR"] == "a"
    assert found["PET_NPROC_PER_NODE"] == "8"
