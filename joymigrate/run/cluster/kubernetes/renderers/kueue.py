"""Kueue: ResourceFlavor, Topology, ClusterQueue, LocalQueue, priorities and batch Jobs.

Every engine whose jobs Kueue admits renders its queues here and hands in how it writes one job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import Job, PodGroup, Workload
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
from joymigrate.run.cluster.queues import Queue

NAME = "kueue"
GANG = frozenset({"time_limit_minutes", "grace_s", "leaf: one", "sp_block"})
SAYS = GANG | {"min_pods"}
SHARES = "hami"
API = "kueue.x-k8s.io/v1beta2"
COHORT = "joymigrate"
TOPOLOGY = "joymigrate"
HOST = "kubernetes.io/hostname"
Make = Callable[[Job, Inventory | None, list[str], Rendered], list[dict[str, Any]]]


def render(workload: Workload, inventory: Inventory | None, out: Rendered) -> None:
    """All objects for one workload, its jobs as batch Jobs."""
    render_with(workload, inventory, out, batch_jobs)


def render_with(
    workload: Workload, inventory: Inventory | None, out: Rendered, make_jobs: Make
) -> None:
    """Kueue's objects, and the jobs as `make_jobs` writes them."""
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
        if any(task.milli for task in job.tasks):
            out.note("shares: Kueue must leave the sharer's resources out of its quotas "
                     "(resources.excludeResourcePrefixes)")  # fmt: skip
        out.objects += make_jobs(job, inventory, levels, out)


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


def metadata(job: Job, name: str = "") -> dict[str, Any]:
    """Name, namespace, queue and priority of a job's object."""
    labels = {"kueue.x-k8s.io/queue-name": dns(job.queue)}
    if job.priority:
        labels["kueue.x-k8s.io/priority-class"] = priority_name(job.priority)
    return {"name": dns(name or job.name), "namespace": "default", "labels": labels}


def topology(job: Job, task: PodGroup, levels: list[str], out: Rendered) -> dict[str, str]:
    """Annotations of topology-aware scheduling: a leaf, or blocks of pods in one super-pod."""
    key = "kueue.x-k8s.io/podset-{}-topology"
    pod, leaf = LABELS["superpod"], LABELS["leaf"]
    if job.sp_block and task.cards and pod not in levels:
        out.note(f"job {job.name}: no super-pods without --inventory, `sp_block` is left out")
    elif job.sp_block and task.cards:
        block = max(1, job.sp_block // task.cards)
        if job.superpod == "soft":
            return {key.format("preferred"): pod}
        if block >= task.pods:
            return {key.format("required"): pod}
        size = {"kueue.x-k8s.io/podset-slice-size": str(block)}
        return {key.format("preferred"): pod, key.format("slice-required"): pod, **size}
    if leaf not in levels:
        if job.leaf == "one" and job.pods > 1:
            out.note(f"job {job.name}: no leaves without --inventory, `leaf: one` is left out")
        return {}
    if job.pods == 1 or job.leaf == "any":
        return {}
    return {key.format("required" if job.leaf == "one" else "preferred"): leaf}


def template(
    job: Job,
    task: PodGroup,
    inventory: Inventory | None,
    levels: list[str],
    out: Rendered,
    variables: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod template that Kueue can place."""
    found: dict[str, Any] = {
        "spec": pod_spec(job, task, kind_of(job, task, inventory), out, variables)
    }
    annotations = topology(job, task, levels, out)
    if annotations:
        found["metadata"] = {"annotations": annotations}
    if job.leaf == "one" and len(job.tasks) > 1 and annotations:
        out.note(f"job {job.name}: each of its tasks gets a leaf of its own")
    return found


def batch_jobs(
    job: Job, inventory: Inventory | None, levels: list[str], out: Rendered
) -> list[dict[str, Any]]:
    """An indexed Job per task; Kueue admits each of them whole."""
    if len(job.tasks) > 1:
        out.note(f"job {job.name}: its {len(job.tasks)} tasks are admitted one by one")
    found = []
    for task in job.tasks:
        named = metadata(job, job.name if len(job.tasks) == 1 else f"{job.name}-{task.name}")
        if 0 < job.min_pods < job.pods:
            named["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": str(job.min_pods)}
        spec: dict[str, Any] = {
            "parallelism": task.pods,
            "completions": task.pods,
            "completionMode": "Indexed",
            "suspend": True,
            "backoffLimit": job.retries,
            "template": template(job, task, inventory, levels, out),
        }
        found.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": spec})
    return found
