"""Jobs that already run: what they hold, checked against what is free."""

from __future__ import annotations

from functools import reduce
from operator import or_

from joymigrate.errors import JoyError
from joymigrate.run.cluster import cards
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.state import ClusterState, Grant, Ints, Placement


def adopt(job: GangJob, state: ClusterState, free: Ints) -> Placement:
    """The grants of a job where its `running` says that it runs; `JoyError` where it cannot."""
    grants: list[Grant] = []
    tasks = [task for task in job.tasks for _ in range(task.pods)]
    if len(tasks) != len(job.running):
        raise JoyError(f"job {job.name}: {len(tasks)} pods, {len(job.running)} under `running`")
    for task, held in zip(tasks, job.running, strict=True):
        if held.node not in state.number:
            raise JoyError(f"job {job.name} runs on '{held.node}', not in the inventory")
        node, mask = state.number[held.node], cards.bits(list(held.cards))
        # Several shares of a job may lie on one card, so their masks are joined, not added.
        taken = reduce(or_, (grant.mask for grant in grants if grant.node == node), 0)
        if not task.milli and int(free[node]) & ~taken & mask != mask:
            raise JoyError(
                f"job {job.name} runs on cards {list(held.cards)} of {held.node}, "
                "which are not free",
                help="correct `running`, or the node's `used` and `unhealthy`",
            )
        grants.append(Grant(node, mask, task.milli, task.cpu_milli, task.memory_mib))
    return tuple(grants)
