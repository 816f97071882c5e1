"""Kueue: ResourceFlavor, Topology, ClusterQueue, LocalQueue, priorities and batch Jobs."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import Job, Queue, Workload
from joymigrate.run.cluster.kinds import Kind
from joymigrate.run.cluster.kubernetes.renderers import (
    LABELS,
    PREFIX,
    Rendered,
    dns,
    kind_of,
    kinds_in_use,
    pod_spec,
    priority_name,
    quotas,
    resource,
    used_queues,
)

NAME = "kueue"
API = "kueue.x-k8s.io/v1beta2"
COHORT = "joymigrate"
TOPOLOGY = "joymigrate"
HOST = "kubernetes.io/hostname"


def render(workload: Workload, inventory: Inventory | None, out: Rendered) -> None:
    """All objects for one workload."""
    known = kinds_in_use(workload, inventory)
    levels = topology_levels(inventory)
    if len(levels) > 1:
        named = {"levels": [{"nodeLabel": label} for label in levels]}
        out.objects.append(make("Topology", TOPOLOGY, named))
    for kind in known:
        labels = dict(kind.kubernetes.get("labels") or {}) or {f"{PREFIX}/kind": kind.name}
        spec: dict[str, Any] = {"nodeLabels": labels}
        if len(levels) > 1:
            spec["topologyName"] = TOPOLOGY
        out.objects.append(make("ResourceFlavor", kind.name, spec))
    for priority in sorted({job.priority for job in workload.jobs} - {0}):
        out.objects.append(
            {
                "apiVersion": API,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": priority_name(priority)},
                "value": priority,
                "description": "Priority of joymigrate jobs",
            }
        )
    for queue in used_queues(workload):
        out.objects.append(cluster_queue(queue, known, inventory, out))
        local = make("LocalQueue", queue.name, {"clusterQueue": dns(queue.name)})
        local["metadata"]["namespace"] = "default"
        out.objects.append(local)
    for job in workload.jobs:
        out.objects += batch_jobs(job, inventory, levels, out)


def make(kind: str, name: str, spec: Any) -> dict[str, Any]:
    """One Kueue object."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": dns(name)}, "spec": spec}


def topology_levels(inventory: Inventory | None) -> list[str]:
    """Node labels from the widest domain to the node, of what the inventory knows."""
    nodes = inventory.nodes if inventory else ()
    found = [LABELS["spine"]] if any(node.spine for node in nodes) else []
    found += [LABELS["superpod"]] if any(node.superpod for node in nodes) else []
    found += [LABELS["leaf"]] if any(node.leaf for node in nodes) else []
    return [*found, HOST]


def cluster_queue(
    queue: Queue, known: list[Kind], inventory: Inventory | None, out: Rendered
) -> dict[str, Any]:
    """MIN is the nominal quota, MAX − MIN what it may borrow from the cohort."""
    low = quotas(queue.min, known, f"queue {queue.name}: MIN", out)
    high = quotas(queue.max, known, f"queue {queue.name}: MAX", out)
    groups: dict[str, list[dict[str, Any]]] = {}
    for kind in known:
        name = resource(kind)
        nominal = float(low.get(name, 0)) if not groups.get(name) else 0.0
        quota: dict[str, Any] = {"name": name, "nominalQuota": f"{nominal:g}"}
        if name in high:
            quota["borrowingLimit"] = f"{max(0.0, float(high[name]) - nominal):g}"
        elif inventory is None and not low:
            out.note(f"queue {queue.name}: without MIN and --inventory its nominal quota is 0")
        groups.setdefault(name, []).append({"name": dns(kind.name), "resources": [quota]})
    preemption = {
        "reclaimWithinCohort": "Any" if queue.min else "Never",
        "withinClusterQueue": "LowerPriority" if "lower-priority" in queue.eviction else "Never",
    }
    spec: dict[str, Any] = {
        "cohortName": COHORT,
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO" if queue.strategy == "fifo" else "BestEffortFIFO",
        "preemption": preemption,
        "resourceGroups": [
            {"coveredResources": [name], "flavors": flavors} for name, flavors in groups.items()
        ],
    }
    if queue.strategy == "fair":
        out.note(f"queue {queue.name}: its users' fair share is not rendered")
    if queue.parent:
        out.note(f"queue {queue.name}: its parent becomes the one cohort '{COHORT}'")
    if "never" in queue.eviction:
        out.note(f"queue {queue.name}: Kueue cannot shield a borrower from being reclaimed")
    return make("ClusterQueue", queue.name, spec)


def batch_jobs(
    job: Job, inventory: Inventory | None, levels: list[str], out: Rendered
) -> list[dict[str, Any]]:
    """An indexed Job per task; Kueue admits each of them whole."""
    if len(job.tasks) > 1:
        out.note(f"job {job.name}: its {len(job.tasks)} tasks are admitted one by one")
    found = []
    for task in job.tasks:
        kind = kind_of(job, task, inventory)
        name = job.name if len(job.tasks) == 1 else f"{job.name}-{task.name}"
        labels = {"kueue.x-k8s.io/queue-name": dns(job.queue)}
        if job.priority:
            labels["kueue.x-k8s.io/priority-class"] = priority_name(job.priority)
        template: dict[str, Any] = {"spec": pod_spec(job, task, kind, out)}
        if task.pods > 1 and LABELS["leaf"] in levels and job.leaf != "any":
            way = "required" if job.leaf == "one" else "preferred"
            key = f"kueue.x-k8s.io/podset-{way}-topology"
            template["metadata"] = {"annotations": {key: LABELS["leaf"]}}
        spec: dict[str, Any] = {
            "parallelism": task.pods,
            "completions": task.pods,
            "completionMode": "Indexed",
            "suspend": True,
            "backoffLimit": job.retries,
            "template": template,
        }
        found.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": dns(name), "namespace": "default", "labels": labels},
                "spec": spec,
            }
        )
    return found
