"""LeaderWorkerSet under Kueue: a gang of pods that serves, and is started again as a whole."""

from __future__ import annotations

from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster import rendezvous
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.kubernetes.renderers import RenderedObjects, kueue

NAME = "leaderworkerset"
SAYS = kueue.GANG - {"time_limit_minutes"}
SHARES = kueue.SHARES
# The controller puts its own variables before ours.
SIZE, LEADER, RANK = "$(LWS_GROUP_SIZE)", "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"


def write_jobs(
    job: GangJob, inventory: Inventory | None, levels: list[str], out: RenderedObjects
) -> list[dict[str, Any]]:
    """One group; of two tasks the first is the leader and has one pod."""
    if len(job.tasks) > 2 or (len(job.tasks) == 2 and job.tasks[0].pods != 1):
        raise JoyError(
            f"job {job.name}: a {NAME} has one leader and equal workers",
            help="one task, or two of which the first has one pod",
        )
    out.note(f"job {job.name} never ends as a {NAME}: its command must serve")
    templates = []
    for task in job.tasks:
        cards = str(task.cards) if task.cards else None
        world = rendezvous.variables(SIZE, LEADER, str(rendezvous.PORT), RANK, cards)
        made = kueue.template(job, task, inventory, levels, out, world)
        made["spec"]["restartPolicy"] = "Always"  # the only one that a stateful set takes
        made["spec"].pop("activeDeadlineSeconds", None)
        templates.append(made)
    group: dict[str, Any] = {"size": job.pods, "restartPolicy": "RecreateGroupOnPodRestart"}
    if len(templates) == 2:
        group["leaderTemplate"] = templates[0]
    group["workerTemplate"] = templates[-1]
    return [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": kueue.metadata(job),
            "spec": {
                "replicas": 1,
                "startupPolicy": "LeaderCreated",
                "leaderWorkerTemplate": group,
            },
        }
    ]
