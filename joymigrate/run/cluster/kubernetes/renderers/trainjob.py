"""TrainJob (Kubeflow Trainer v2) under Kueue, on the trainer's own runtime for PyTorch."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.kubernetes.renderers import (
    PREFIX,
    RenderedObjects,
    image_of,
    kind_of,
    kueue,
    one_task,
    requests,
    seconds,
)

NAME = "trainjob"
SAYS = kueue.GANG - {"grace_s"}
SHARES = kueue.SHARES
RUNTIME = "torch-distributed"  # a ClusterTrainingRuntime that the trainer brings
NODE = "node"  # its replicated job


def write_jobs(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> list[dict[str, Any]]:
    """One job; the runtime sets torchrun's PET_ variables, one process per card."""
    task = one_task(job, NAME)
    asks = requests(job, task, kind_of(job, task, inventory), out)
    trainer: dict[str, Any] = {
        "image": image_of(job, out),
        "numNodes": task.pods,
        "numProcPerNode": max(1, task.cards),
        "resourcesPerNode": {"requests": dict(asks), "limits": dict(asks)},
    }
    if job.command:
        trainer["command"] = list(job.command)
    if job.environment:
        trainer["env"] = [{"name": name, "value": text} for name, text in job.environment.items()]
    out.note(f"TrainJobs run on the ClusterTrainingRuntime '{RUNTIME}', which must be there")
    if job.retries:
        out.note(f"job {job.name}: `retries` is the runtime's to say")
    spec: dict[str, Any] = {
        "runtimeRef": {"name": RUNTIME},
        "suspend": True,
        "trainer": trainer,
    }
    annotations = kueue.topology(job, task, levels, out)
    if annotations:
        pods = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        inside = {"spec": {"replicatedJobs": [{"name": NODE, "template": pods}]}}
        patch = {"manager": f"{PREFIX}/render", "trainingRuntimeSpec": {"template": inside}}
        spec["runtimePatches"] = [patch]
    if job.time_limit is not None:
        spec["activeDeadlineSeconds"] = seconds(job)
    return [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": kueue.metadata(job),
            "spec": spec,
        }
    ]
