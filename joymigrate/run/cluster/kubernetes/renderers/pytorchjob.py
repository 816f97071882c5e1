"""PyTorchJob (training operator v1) under Kueue: a master and its workers."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.kubernetes.renderers import RenderedObjects, kueue, one_task

NAME = "pytorchjob"
SAYS = kueue.GANG
SHARES = kueue.SHARES
CONTAINER = "pytorch"  # the operator looks for a container of this name


def together(job: GangJob, template: dict[str, Any]) -> None:
    """Let Kueue place master and workers as one set of pods; it cannot where they are in blocks."""
    annotations = template.get("metadata", {}).get("annotations")
    if annotations and job.pods > 1 and "kueue.x-k8s.io/podset-slice-size" not in annotations:
        annotations["kueue.x-k8s.io/podset-group-name"] = "gang"


def write_jobs(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> list[dict[str, Any]]:
    """One job; the operator sets MASTER_ADDR, RANK and WORLD_SIZE, one process per pod."""
    task = one_task(job, NAME)
    replicas: dict[str, Any] = {}
    for name, pods in (("Master", 1), ("Worker", task.pods - 1)):
        if pods:
            template = kueue.template(job, task, inventory, levels, out)
            template["spec"]["containers"][0]["name"] = CONTAINER
            del template["spec"]["restartPolicy"]  # the replica's own
            together(job, template)
            how = "OnFailure" if job.retries else "Never"
            replicas[name] = {"replicas": pods, "restartPolicy": how, "template": template}
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": kueue.metadata(job),
            "spec": {
                "runPolicy": {"suspend": True, "backoffLimit": job.retries},
                "pytorchReplicaSpecs": replicas,
            },
        }
    ]
