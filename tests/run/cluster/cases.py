"""Small clusters and jobs for the tests of this package."""

from __future__ import annotations

from typing import Any

import yaml

from joymigrate.run.cluster import inventory, jobs, policies
from joymigrate.run.cluster.events import Action, Evict, Start, Submitted
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob, Workload
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.scheduler import Scheduler


def nodes(text: str) -> Inventory:
    """An inventory from the YAML items of `nodes`."""
    return inventory.from_data({"nodes": yaml.safe_load(text)})


def workload(text: str) -> Workload:
    """A workload from YAML."""
    return jobs.from_data(yaml.safe_load(text))


def job(name: str, kind: str = "gpu-8", **more: Any) -> GangJob:
    """One job from the keys of a jobs file."""
    return jobs.from_data({"jobs": [{"name": name, "kind": kind, **more}]}).jobs[0]


def queue(name: str, **more: Any) -> Queue:
    """One queue from the keys of a jobs file."""
    return jobs.from_data({"jobs": [], "queues": [{"name": name, **more}]}).queues[0]


def scheduler(cluster: Inventory, *queues: Queue, policy: str = "topology") -> Scheduler:
    """A scheduler over a cluster."""
    return Scheduler(cluster, queues, policies.get(policy))


def started(actions: list[Action]) -> list[str]:
    """Names of the jobs that these actions start."""
    return [action.job.name for action in actions if isinstance(action, Start)]


def evicted(actions: list[Action]) -> list[str]:
    """Names of the jobs that these actions stop."""
    return [action.job.name for action in actions if isinstance(action, Evict)]


def submit(scheduler: Scheduler, *new: GangJob, at: float = 0.0) -> list[Action]:
    """Submit jobs one after the other."""
    return [action for one in new for action in scheduler.on(Submitted(one, at))]
