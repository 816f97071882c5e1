"""JobSet under Kueue: one set per job, so that all of its tasks are admitted together."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.kubernetes.renderers import RenderedObjects, dns, kueue, world_variables

NAME = "jobset"
SAYS = kueue.GANG
SHARES = kueue.SHARES


def write_jobs(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> list[dict[str, Any]]:
    """The set of one job: an indexed Job per task, all restarted together."""
    name = dns(job.name)
    first = f"{name}-{dns(job.tasks[0].name)}-0-0.{name}"
    variables = world_variables(job, first, kueue.INDEX, out)
    parts = []
    for task in job.tasks:
        spec = {
            "parallelism": task.pods,
            "completions": task.pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": kueue.template(job, task, inventory, levels, out, variables),
        }
        parts.append({"name": dns(task.name), "replicas": 1, "template": {"spec": spec}})
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": kueue.metadata(job),
            "spec": {
                "suspend": True,
                "network": {"enableDNSHostnames": True},
                "failurePolicy": {"maxRestarts": job.retries},
                "replicatedJobs": parts,
            },
        }
    ]
