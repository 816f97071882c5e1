"""What is true of a Ray cluster on which nothing has been submitted: its nodes, and no job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.controller.ledger import JobLedger
from joymigrate.run.cluster.controller.orders import ClusterOrder, decide
from joymigrate.run.cluster.on_ray.answers import ControllerQueries
from joymigrate.run.cluster.on_ray.nodes import inventory
from joymigrate.run.cluster.scheduler import Scheduler


class Beforehand(ControllerQueries):
    """Answers like the controller before there is one, and refuses what it would refuse."""

    def __init__(self, ray: Any) -> None:
        self.ray, self.root, self.ledger, self.gangs = ray, "", JobLedger(), {}
        self.cluster, self.ids = inventory(ray.nodes())
        self.scheduler = Scheduler(self.cluster)

    async def submit(self, new: Sequence[jobs.GangJob], by: str = "", request: str = "") -> None:
        """Nothing is in the way of a first job."""

    async def order(self, order: ClusterOrder) -> None:
        """Refuse an order about what is not there."""
        decide(order, self.ledger, self.cluster)

    async def set_quotas(self, workload: jobs.Workload, by: str = "") -> None:
        """Refuse queues that cannot hold."""
        await self.compare_quotas(workload)

    async def cancel(self, name: str, by: str = "") -> str:
        """Refuse: there is no job."""
        return self.ledger.record(name).state

    async def execute(self, name: str, *given: Any) -> tuple[int, bytes]:
        """Refuse: there is no job."""
        return 0, self.ledger.record(name).state.encode()

    async def history(self, job: str = "", count: int = 0) -> list[dict[str, Any]]:
        """Nothing has happened."""
        return [] if not job else [{"job": self.ledger.record(job).job.name}]
