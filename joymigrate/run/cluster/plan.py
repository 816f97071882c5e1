"""One cycle over an inventory and a jobs file: who starts where, who waits and why."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster import cards, policies
from joymigrate.run.cluster.dependencies import check_order
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import Evict, Start, Submitted
from joymigrate.run.cluster.explain import explain
from joymigrate.run.cluster.foresight import Outlook, look_ahead
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import Workload
from joymigrate.run.cluster.policies import Policy
from joymigrate.run.cluster.scheduler import Scheduler

SCHEMA = "joymigrate.plan/1"


def plan(inventory: Inventory, workload: Workload, policy: Policy | None = None) -> dict[str, Any]:
    """The plan as plain data (schema `joymigrate.plan/1`)."""
    scheduler = Scheduler(
        inventory,
        workload.queues,
        policy or policies.get(policies.DEFAULT),
        workload.weights,
        ClusterSettings(hold=True),
    )
    check_order(workload.jobs)
    running = [job for job in workload.jobs if job.running]
    scheduler.on_all(Submitted(job) for job in running)
    new = [job for job in workload.jobs if not job.running]
    actions = scheduler.on_all(Submitted(job) for job in new)
    placed = {action.job.name: action for action in actions if isinstance(action, Start)}
    outlook = look_ahead(scheduler, 0.0)
    evicted = [action for action in actions if isinstance(action, Evict)]
    return {
        "schema": SCHEMA,
        "policy": scheduler.placer.policy.name,
        "placements": [
            placement_data(scheduler, placed[job.name])
            for job in workload.jobs
            if job.name in placed and job.name in scheduler.running
        ],
        "waiting": [
            waiting_data(scheduler, job.name, outlook)
            for job in workload.jobs
            if job.name not in scheduler.running
        ],
        "evicted": [action.job.name for action in evicted],
        "evictions": [
            {"job": action.job.name, "by": action.by, "why": action.why} for action in evicted
        ],
        "warnings": list(inventory.warnings),
    }


def placement_data(scheduler: Scheduler, start: Start) -> dict[str, Any]:
    """Pods of a started job in rank order."""
    pods = []
    for rank, grant in enumerate(start.placement):
        node = scheduler.state.nodes[grant.node]
        pod: dict[str, Any] = {"node": node.name, "cards": cards.ids(grant.mask), "rank": rank}
        if grant.milli:
            pod["share"] = grant.milli / 1000
        pods.append(pod)
    return {"job": start.job.name, "queue": start.job.queue, "pods": pods}


def waiting_data(scheduler: Scheduler, name: str, outlook: Outlook) -> dict[str, Any]:
    """Why a job waits, and what was tried and is enough for it to start."""
    data = explain(scheduler, name, outlook.now, outlook)
    if data is None:
        raise AssertionError(f"job {name} neither runs nor has a reason")
    return data
