"""RayCluster (KubeRay) under Kueue: the nodes of a job, for commands that come later."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.kubernetes.renderers import RenderedObjects, kueue, rayjob

NAME = "raycluster"
SAYS = rayjob.SAYS - {"time_limit_minutes"}
SHARES = kueue.SHARES


def write_jobs(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> list[dict[str, Any]]:
    """One cluster, which stays until it is deleted; the job's command is not started."""
    spec = rayjob.cluster_spec(job, inventory, levels, out)
    out.note(f"job {job.name}: a {NAME} starts no command and never ends")
    named = kueue.metadata(job)
    whole = {"suspend": True, **spec}
    return [{"apiVersion": rayjob.API, "kind": "RayCluster", "metadata": named, "spec": whole}]
