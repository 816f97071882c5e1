"""RayJob (KubeRay) under Kueue: a Ray cluster of its own for each job, gone when it ends."""

from __future__ import annotations

import json
import shlex
from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.kubernetes.renderers import (
    RenderedObjects,
    dns,
    image_of,
    kind_of,
    kueue,
    seconds,
)

NAME = "rayjob"
SAYS = kueue.GANG | {"min_pods"}
SHARES = kueue.SHARES
API = "ray.io/v1"
HEAD = {"cpu": "1", "memory": "4Gi"}  # of the pod that starts the command; it has no cards


def write_jobs(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> list[dict[str, Any]]:
    """One job; its command is started once, on the head."""
    out.note(f"job {job.name}: its command runs once, on Ray's head, and asks Ray for the pods")
    spec: dict[str, Any] = {
        "entrypoint": shlex.join(job.command),
        "suspend": True,
        "shutdownAfterJobFinishes": True,
        "backoffLimit": job.retries,
        "rayClusterSpec": cluster_spec(job, inventory, levels, out),
    }
    if job.time_limit is not None:
        spec["activeDeadlineSeconds"] = seconds(job)
    return [
        {"apiVersion": API, "kind": "RayJob", "metadata": kueue.metadata(job), "spec": spec},
    ]


def cluster_spec(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> dict[str, Any]:
    """A head without cards, and one group of workers per task."""
    head: dict[str, Any] = {
        "name": "ray-head",
        "image": image_of(job, out),
        "resources": {"requests": dict(HEAD), "limits": dict(HEAD)},
    }
    if job.environment:
        head["env"] = [{"name": name, "value": text} for name, text in job.environment.items()]
    out.note(f"job {job.name}: its image must bring Ray")
    groups = []
    for task in job.tasks:
        kind = kind_of(job, task, inventory)
        made = kueue.template(job, task, inventory, levels, out)
        container = made["spec"]["containers"][0]
        container["name"] = "ray-worker"
        container.pop("command", None)  # the operator starts Ray in it
        made["spec"].pop("restartPolicy")
        made["spec"].pop("activeDeadlineSeconds", None)
        groups.append(
            {
                "groupName": dns(task.name),
                "replicas": task.pods,
                "minReplicas": job.min_pods or task.pods,
                "maxReplicas": task.pods,
                "rayStartParams": start_parameters(task, kind),
                "template": made,
            }
        )
    return {
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": {"containers": [head]}},
        },
        "workerGroupSpecs": groups,
    }


def start_parameters(task: PodGroup, kind: ServerKind | None) -> dict[str, str]:
    """What `ray start` is told about a worker's cards, by Ray's own name for them."""
    if kind is None or not kind.ray_resource:
        return {}
    if kind.ray_resource == "GPU":
        return {"num-gpus": str(task.cards or 1)}
    # The operator puts this into a shell line: KubeRay's own samples quote it like this.
    inside = json.dumps(json.dumps({kind.ray_resource: task.cards or 1}))
    return {"resources": inside}
