"""Volcano: PriorityClass, Queue, HyperNode and vcjob; what its scheduler must load is a note."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE, GangJob, Workload
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.kubernetes.renderers import (
    LABELS,
    RenderedObjects,
    dns,
    kind_of,
    kinds_in_use,
    pod_spec,
    priority_name,
    queue_of,
    quotas,
    resource,
    used_queues,
    world_variables,
)
from joymigrate.run.cluster.kubernetes.renderers._shares import rule
from joymigrate.run.cluster.queues import Queue

NAME = "volcano"
SAYS = frozenset({"time_limit_minutes", "grace_s", "leaf: one", "numa: one", "sp_block"})
SHARES = "volcano"
MOST_EVICTIONS = 1000
# Set by the controller on every pod (pkg/controllers/job/job_controller_util.go, createJobPod).
INDEX = {"fieldRef": {"fieldPath": "metadata.annotations['volcano.sh/task-index']"}}


def render(workload: Workload, inventory: Inventory | None, out: RenderedObjects) -> None:
    """All objects for one workload."""
    out.objects += priority_classes(workload)
    known = kinds_in_use(workload, inventory)
    out.objects += [
        queue_object(queue, workload, known, out)
        for queue in used_queues(workload)
        if queue.name != DEFAULT_QUEUE or queue.max or queue.min
    ]
    out.objects += hyper_nodes(inventory)
    for job in workload.jobs:
        out.objects.append(vcjob(job, inventory, out))
    note_scheduler(workload, inventory, out)


def priority_classes(workload: Workload) -> list[dict[str, Any]]:
    """One class for each priority that a job uses."""
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": priority_name(priority)},
            "value": priority,
            "globalDefault": False,
            "description": "Priority of joymigrate jobs",
        }
        for priority in sorted({job.priority for job in workload.jobs} - {0})
    ]


def queue_object(
    queue: Queue, workload: Workload, known: list[ServerKind], out: RenderedObjects
) -> dict[str, Any]:
    """MIN is the guarantee, MAX the capability."""
    spec: dict[str, Any] = {"weight": max(1, round(queue.weight)), "type": "default"}
    low = quotas(queue.min, known, f"queue {queue.name}: MIN", out)
    middle = quotas(queue.deserved or queue.min, known, f"queue {queue.name}: deserved", out)
    high = quotas(queue.max, known, f"queue {queue.name}: MAX", out)
    parent = queue
    while parent.parent:
        parent = queue_of(workload, parent.parent)
        above = quotas(parent.max, known, f"queue {parent.name}: MAX", out)
        # The webhook refuses a child that may grow beyond its parent.
        for name in high.keys() & above.keys():
            high[name] = min(high[name], above[name], key=float)
    if low:
        spec["guarantee"] = {"resource": low}
        out.note(f"queue {queue.name}: Volcano does not lend a guarantee, unused MIN stays idle")
    if middle:
        spec["deserved"] = middle
    if high:
        spec["capability"] = high
    if queue.parent:
        spec["parent"] = dns(queue.parent)
    if queue.priority > 0:
        spec["priority"] = queue.priority
    spec["reclaimable"] = "over-deserved" in queue.eviction
    spec["dequeueStrategy"] = "fifo" if queue.strategy == "fifo" else "traverse"
    if queue.min_runtime:
        out.note(f"queue {queue.name}: a minimum run time is not expressible")
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": dns(queue.name)},
        "spec": spec,
    }


def hyper_nodes(inventory: Inventory | None) -> list[dict[str, Any]]:
    """Leaves (tier 1) over nodes, spines (tier 2) over leaves; super-pods where there are any."""
    if inventory is None:
        return []
    leaves: dict[str, list[str]] = {}
    spines: dict[str, list[str]] = {}
    for node in inventory.nodes:
        domain = node.leaf or node.superpod
        if domain:
            leaves.setdefault(domain, []).append(node.name)
            if node.spine and domain not in spines.setdefault(node.spine, []):
                spines[node.spine].append(domain)
    found = [hyper_node(f"leaf-{leaf}", 1, "Node", nodes) for leaf, nodes in leaves.items()]
    found += [
        hyper_node(f"spine-{spine}", 2, "HyperNode", [dns(f"leaf-{leaf}") for leaf in below])
        for spine, below in spines.items()
    ]
    return found


def hyper_node(name: str, tier: int, kind: str, members: list[str]) -> dict[str, Any]:
    """One domain of the network."""
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": dns(name)},
        "spec": {
            "tier": tier,
            "tierName": LABELS["leaf" if tier == 1 else "spine"],
            "members": [
                {"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members
            ],
        },
    }


def vcjob(job: GangJob, inventory: Inventory | None, out: RenderedObjects) -> dict[str, Any]:
    """A gang: minAvailable is the number of all pods."""
    name = dns(job.name)
    first = f"{name}-{dns(job.tasks[0].name)}-0.{name}"  # as the plug-in `svc` names it
    variables = world_variables(job, first, INDEX, out)
    tasks = []
    for task in job.tasks:
        kind = kind_of(job, task, inventory)
        pod = pod_spec(job, task, kind, out, variables)
        if kind is not None and kind.kubernetes.get("labels"):
            pod["nodeSelector"] = dict(kind.kubernetes["labels"])
        pod["schedulerName"] = "volcano"
        if len(task.kinds) > 1:
            out.note(f"job {job.name}: only its first kind, {task.kinds[0]}, is rendered")
        one = {
            "name": dns(task.name),
            "replicas": task.pods,
            "minAvailable": task.pods,
            "template": {"metadata": {"labels": {"app": dns(job.name)}}, "spec": pod},
        }
        if job.numa == "one" and (task.cards or task.milli):
            one["topologyPolicy"] = "single-numa-node"
        if job.sp_block and task.cards:
            one.update(blocks(job, task.pods, max(1, job.sp_block // task.cards), out))
        tasks.append(one)
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": dns(job.queue),
        "minAvailable": job.pods,
        "maxRetry": max_retry(job, out),
        "plugins": {"svc": [], "env": []},
        "policies": [{"event": "PodEvicted", "action": "RestartJob"},
                     {"event": "PodFailed", "action": "RestartJob" if job.retries else "AbortJob"}],
        "tasks": tasks,
    }  # fmt: skip
    if job.priority:
        spec["priorityClassName"] = priority_name(job.priority)
    if job.pods > 1 and job.leaf != "any":
        mode = "hard" if job.leaf == "one" else "soft"
        spec["networkTopology"] = {"mode": mode, "highestTierAllowed": 1 if mode == "hard" else 2}
    if job.minutes is not None:
        spec["runningEstimate"] = f"{round(job.minutes * 60)}s"
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": spec,
    }


def max_retry(job: GangJob, out: RenderedObjects) -> int:
    """Volcano counts restarts after failures and after evictions alike, and fails a job whose
    count has reached maxRetry (pkg/controllers/job/state/{running,restarting}.go): n restarts need
    n + 1. A job that is not started again when it fails may be evicted as often as need be.
    """
    if not job.retries:
        return MOST_EVICTIONS + 1
    out.note(f"job {job.name}: an eviction counts as one of its {job.retries} retries")
    return job.retries + 1


def blocks(job: GangJob, pods: int, size: int, out: RenderedObjects) -> dict[str, Any]:
    """Pods in blocks of `size` that each lie in one domain of tier 1, a super-pod."""
    if pods % size:
        out.note(f"job {job.name}: {pods} pods are not blocks of {size}, `sp_block` is left out")
        return {}
    inside = {"mode": job.superpod, "highestTierAllowed": 1}
    return {
        "partitionPolicy": {
            "totalPartitions": pods // size,
            "partitionSize": size,
            "minPartitions": pods // size,
            "networkTopology": inside,
        }
    }


def note_scheduler(workload: Workload, inventory: Inventory | None, out: RenderedObjects) -> None:
    """Say which plug-ins these objects count on: the scheduler's settings are everybody's."""
    known = kinds_in_use(workload, inventory)
    needs = ["gang"]
    if any(item["kind"] == "Queue" for item in out.objects):
        tree = " (enableHierarchy: true)" if any(queue.parent for queue in workload.queues) else ""
        needs.append(f"capacity{tree} in place of proportion")
    if any(item["kind"] == "HyperNode" for item in out.objects):
        needs.append("network-topology-aware")
    if any(job.numa == "one" for job in workload.jobs):
        needs.append("numa-aware")
    shared = {
        str(name)
        for job in workload.jobs
        for task in job.tasks
        if task.milli and (kind := kind_of(job, task, inventory)) is not None
        if (name := rule(kind, NAME).get("plugin"))
    }
    if shared:
        needs.append(f"deviceshare ({', '.join(sorted(shared))}: true)")
    cards = ", ".join(sorted({resource(kind) for kind in known}))
    out.note(f"Volcano's scheduler must load {', '.join(needs)}; binpack over {cards} keeps "
             "servers whole. Nothing here changes its settings")  # fmt: skip
