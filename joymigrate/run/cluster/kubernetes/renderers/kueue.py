"""Kueue: ResourceFlavor, Topology, ClusterQueue, LocalQueue, priorities and batch Jobs.

Every engine whose jobs Kueue admits has its queues from here, and writes one job itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob, PodGroup, Workload
from joymigrate.run.cluster.kubernetes.renderers import (
    LABELS,
    PREFIX,
    RenderedObjects,
    dns,
    kind_of,
    kinds_in_use,
    pod_spec,
    priority_name,
    used_queues,
    world_variables,
)
from joymigrate.run.cluster.kubernetes.renderers._kueue_quotas import API, CohortQuotas, make
from joymigrate.run.cluster.queues import Queue

NAME = "kueue"
GANG = frozenset({"time_limit_minutes", "grace_s", "leaf: one", "sp_block"})
SAYS = GANG | {"min_pods"}
SHARES = "hami"
TOPOLOGY = "joymigrate"
INDEX = {
    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
}
HOST = "kubernetes.io/hostname"
Make = Callable[[GangJob, Inventory | None, list[str], RenderedObjects], list[dict[str, Any]]]


def render_queues(
    workload: Workload, inventory: Inventory | None, out: RenderedObjects, make_jobs: Make
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
    quotas = CohortQuotas(used_queues(workload), known, inventory, out)
    out.objects += quotas.cohorts()
    for queue in quotas.queues:
        out.objects.append(cluster_queue(queue, quotas, out))
        local = make("LocalQueue", queue.name, {"clusterQueue": dns(queue.name)})
        local["metadata"]["namespace"] = "default"
        out.objects.append(local)
    for job in workload.jobs:
        if any(task.cpu_milli or task.memory_mib for task in job.tasks):
            out.note("Kueue admits no pod that asks for a resource without a quota: leave cpu and "
                     "memory out of its quotas (resources.excludeResourcePrefixes)")  # fmt: skip
        if any(task.milli for task in job.tasks):
            out.note("shares: Kueue must leave the sharer's resources out of its quotas "
                     "(resources.excludeResourcePrefixes)")  # fmt: skip
        out.objects += make_jobs(job, inventory, levels, out)


def topology_levels(inventory: Inventory | None) -> list[str]:
    """Node labels from the widest domain to the node, of what the inventory knows."""
    nodes = inventory.nodes if inventory else ()
    found = [LABELS["spine"]] if any(node.spine for node in nodes) else []
    found += [LABELS["superpod"]] if any(node.superpod for node in nodes) else []
    found += [LABELS["leaf"]] if any(node.leaf for node in nodes) else []
    return [*found, HOST]


def cluster_queue(queue: Queue, quotas: CohortQuotas, out: RenderedObjects) -> dict[str, Any]:
    """MIN is the nominal quota, MAX − MIN what it may borrow from the cohort.

    A queue with parts is a cohort: its own jobs share what that holds.
    """
    whole = queue.name in quotas.parents
    preemption = {
        "reclaimWithinCohort": "Any" if queue.min else "Never",
        "withinClusterQueue": "LowerPriority" if "lower-priority" in queue.eviction else "Never",
    }
    spec: dict[str, Any] = {
        "cohortName": quotas.cohort_of(queue),
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO" if queue.strategy == "fifo" else "BestEffortFIFO",
        "preemption": preemption,
        "resourceGroups": quotas.groups({} if whole else quotas.nominal[queue.name],
                                        {} if whole else quotas.most[queue.name]),
    }  # fmt: skip
    if "never" in queue.eviction:
        out.note(f"queue {queue.name}: Kueue cannot shield a borrower from being reclaimed")
    return make("ClusterQueue", queue.name, spec)


def service(job: str) -> dict[str, Any]:
    """A service without an address: it gives every pod of an indexed Job its name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job, "namespace": "default"},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": job},
        },
    }


def metadata(job: GangJob, name: str = "") -> dict[str, Any]:
    """Name, namespace, queue and priority of a job's object."""
    labels = {"kueue.x-k8s.io/queue-name": dns(job.queue)}
    if job.priority:
        labels["kueue.x-k8s.io/priority-class"] = priority_name(job.priority)
    return {"name": dns(name or job.name), "namespace": "default", "labels": labels}


def topology(
    job: GangJob, task: PodGroup, levels: list[str], out: RenderedObjects
) -> dict[str, str]:
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
    job: GangJob,
    task: PodGroup,
    inventory: Inventory | None,
    levels: list[str],
    out: RenderedObjects,
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


def write_jobs(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> list[dict[str, Any]]:
    """An indexed Job per task; Kueue admits each of them whole."""
    if len(job.tasks) > 1:
        out.note(f"job {job.name}: its {len(job.tasks)} tasks are admitted one by one")
    found: list[dict[str, Any]] = []
    for task in job.tasks:
        named = metadata(job, job.name if len(job.tasks) == 1 else f"{job.name}-{task.name}")
        if 0 < job.min_pods < job.pods:
            named["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": str(job.min_pods)}
        name = named["name"]
        variables = (
            {} if len(job.tasks) > 1 else world_variables(job, f"{name}-0.{name}", INDEX, out)
        )
        if variables:
            found.append(service(name))
        spec: dict[str, Any] = {
            "parallelism": task.pods,
            "completions": task.pods,
            "completionMode": "Indexed",
            "suspend": True,
            "backoffLimit": job.retries,
            "template": template(job, task, inventory, levels, out, variables),
        }
        if variables:
            spec["template"]["spec"]["subdomain"] = name
        found.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": spec})
    return found
