"""What the controller answers without a change: jobs, reasons, queues, the past, outputs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.controller.ledger import JobAttempt, JobLedger, begin_attempt
from joymigrate.run.cluster.controller.orders import compare_quotas
from joymigrate.run.cluster.controller.reports import (
    board_data,
    quota_data,
    read_history,
    status_data,
)
from joymigrate.run.cluster.controller.store import LogStore
from joymigrate.run.cluster.explain import explain
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.on_ray import output
from joymigrate.run.cluster.on_ray.gang import Gang, answer
from joymigrate.run.cluster.scheduler import Scheduler

LOG_LINES = 200
FACTS = 30  # of the log, on the monitor's page


class ControllerQueries:
    """The part of the controller that only looks."""

    ray: Any
    root: str
    store: LogStore
    ledger: JobLedger
    scheduler: Scheduler
    cluster: Inventory
    ids: Mapping[str, str]
    gangs: Mapping[int, Gang]

    async def status(self, names: Sequence[str] = (), reasons: bool = True) -> dict[str, Any]:
        """All jobs (or the named ones) with their pods or the reason why they wait."""
        return status_data(self.scheduler, self.ledger, time.time(), names, reasons)

    async def board(self) -> dict[str, Any]:
        """What the monitor's page shows: cards, queues, jobs with reasons, the last facts."""
        facts = {"facts": await self.history("", FACTS)}
        return board_data(self.scheduler, self.ledger, time.time()) | facts

    async def explain(self, name: str) -> dict[str, Any]:
        """Why a job waits, what is enough for it to start, and when it will."""
        record = self.ledger.record(name)
        data = {"schema": "joymigrate.reason/1", "job": name, "state": record.state}
        found = explain(self.scheduler, name, time.time())
        return {**data, **(found or {"reason": record.note})}

    async def quota(self) -> dict[str, Any]:
        """Every queue with its limits and what it uses of them."""
        return quota_data(self.scheduler, self.ledger)

    async def compare_quotas(self, workload: jobs.Workload) -> dict[str, Any]:
        """What other queues would change: who would be stopped, who would start."""
        known = (self.ledger, self.cluster, workload.queues, workload.weights)
        change = dataclasses.asdict(compare_quotas(*known, time.time()))
        return {"schema": "joymigrate.quota-change/1", **change}

    async def history(self, job: str = "", count: int = 0) -> list[dict[str, Any]]:
        """The log, all of it or one job's; with `count` its last lines."""
        facts = await asyncio.to_thread(read_history, self.store.folder, job, count)
        if job and not facts:
            self.ledger.record(job)  # refuses an unknown name
        return facts

    async def logs(self, name: str, count: int = LOG_LINES, attempt: int = 0) -> list[list[str]]:
        """The last lines of every pod, by rank, of the last attempt or a named one."""
        return [
            await self._remote(output.tail, name, one, rank, count)
            for one, rank in self._ranks(name, attempt)
        ]

    async def read(
        self, name: str, rank: int, start: int, limit: int, attempt: int = 0
    ) -> output.OutputPiece:
        """A piece of one pod's output, from a place on."""
        ranks = {rank: one for one, rank in self._ranks(name, attempt)}
        if rank not in ranks:
            return output.OutputPiece(start, b"", start)
        piece: output.OutputPiece = await self._remote(
            output.read, name, ranks[rank], rank, start, limit
        )
        return piece

    def _ranks(self, name: str, attempt: int) -> list[tuple[JobAttempt, int]]:
        """The pods of an attempt, those of one that is over too."""
        record = self.ledger.record(name)
        number = attempt or record.attempt
        found = self.ledger.attempts.get(number)
        if found is None:
            for one in self.store.facts(after=number - 1, job=name):
                if one.number == number and one.kind == "started":
                    found = begin_attempt(one)
        if found is None and attempt:
            raise JoyError(
                f"job '{name}' has no attempt {attempt}",
                help=f"the last one: {record.attempt or 'none'}; `cluster history {name}` has all",
            )
        return [] if found is None else [(found, pod.rank) for pod in found.pods]

    async def _remote(
        self, function: Any, name: str, attempt: JobAttempt, rank: int, *arguments: Any
    ) -> Any:
        """What a pod, or else its node, says about its output."""
        gang = self.gangs.get(attempt.number)
        if gang is not None and rank < len(gang.pods):
            method = gang.pods[rank].read if function is output.read else gang.pods[rank].tail
            try:
                return await answer(method.remote(*arguments))
            except self.ray.exceptions.RayActorError:
                pass  # it has just been taken away
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = attempt.pods[rank].node
        if node not in self.ids:
            gone = f"[node {node} is gone, and this pod's output with it]"
            return [gone] if function is output.tail else output.OutputPiece(0, b"", 0)
        pinned = NodeAffinitySchedulingStrategy(self.ids[node], soft=False)
        task = self.ray.remote(on_node).options(num_cpus=0, scheduling_strategy=pinned)
        where = (self.root, name, attempt.number, rank)
        return await answer(task.remote(function.__name__, where, *arguments))


def on_node(function: str, where: tuple[str, str, int, int], *arguments: Any) -> Any:
    """Read a pod's output on the node that this runs on."""
    return getattr(output, function)(output.folder_of(*where), *arguments)
