"""The waiting jobs of a scheduler: groups of those that are alike, and whose turn it is."""

from __future__ import annotations

import bisect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joymigrate.run.cluster import run_times
from joymigrate.run.cluster.entries import NEVER, ClusterSettings, RunningJob, WaitingJob
from joymigrate.run.cluster.events import Ended
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.line import WaitingLine
from joymigrate.run.cluster.quota import Quotas
from joymigrate.run.cluster.reasons import PlacementRefusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joymigrate.run.cluster.admission import Admission
    from joymigrate.run.cluster.entries import CardHold


class WaitingJobs:
    """The part of a scheduler that keeps its waiting jobs in order; it starts none of them."""

    admission: Admission

    def __init__(self, quotas: Quotas, settings: ClusterSettings) -> None:
        self.quotas, self.settings = quotas, settings
        self.waiting: dict[str, WaitingJob] = {}
        self.running: dict[str, RunningJob] = {}
        self.by_queue: dict[str, dict[str, RunningJob]] = {}
        self._groups: dict[int, WaitingLine] = {}
        self._group_of: dict[tuple[Any, ...], int] = {}
        self._failed: set[int] = set()
        self._why: dict[int, PlacementRefusal] = {}
        self._lines: dict[str, list[tuple[int, WaitingJob]]] = {}  # of queues in strict order
        self.history: run_times.History = {}
        self._now = 0.0

    def _release(self, holds: Sequence[CardHold]) -> None:
        """Let go of held cards."""
        raise NotImplementedError

    def _group(self, job: GangJob) -> int:
        """Jobs of one number ask for the same cards under the same rules."""
        tasks = job.tasks
        if len(tasks) == 1 and (tasks[0].cpu_milli or tasks[0].memory_mib):
            tasks = (replace(tasks[0], cpu_milli=0, memory_mib=0),)
        key = (job.queue, job.priority, tasks, job.sp_block, job.leaf, job.numa, job.superpod)
        return self._group_of.setdefault(key, len(self._group_of))

    def _wait(self, entry: WaitingJob) -> None:
        self.waiting[entry.job.name] = entry
        if self.settings.predict and entry.job.minutes is None:
            entry.expected_s = run_times.predict(self.history, entry.job)
            entry.high_s = run_times.predict(self.history, entry.job, run_times.HIGH)
        if entry.group not in self._groups:
            self._groups[entry.group] = WaitingLine(self.settings)
        self._groups[entry.group].add(entry)
        if self._strict(entry.job.queue):
            bisect.insort(self._lines.setdefault(entry.job.queue, []), (-entry.job.priority, entry))

    def _unwait(self, entry: WaitingJob) -> None:
        del self.waiting[entry.job.name]
        group = self._groups[entry.group]
        group.remove(entry)
        if not group.entries:
            del self._groups[entry.group]
        if self._strict(entry.job.queue):
            line = self._lines[entry.job.queue]
            del line[bisect.bisect_left(line, (-entry.job.priority, entry))]
            if line:
                self._failed.discard(line[0][1].group)
        self._release([hold for hold in self.admission.holds if hold.entry is entry])

    def _strict(self, queue: str) -> bool:
        """Whether a queue starts its jobs in their order only."""
        return self.quotas.account(queue).queue.strategy == "fifo"

    def _learn(self, run: RunningJob, event: Ended) -> None:
        """Remember how long a job has run."""
        if event.well and run.entry.whole is None:  # another size says little of the run time
            run_times.learn(self.history, run.entry.job, event.at - run.started)

    def _expected_end(self, entry: WaitingJob, began: float) -> float:
        """When a running job that states no end is expected to: as nine of ten of its like had."""
        if not self.settings.predict or entry.whole is not None:
            return NEVER
        ran_s = max(self._now - began, 0.0)
        seconds = run_times.predict(self.history, entry.job, run_times.HIGH, ran_s)
        return NEVER if seconds is None else began + seconds

    def _behind(self, entry: WaitingJob) -> PlacementRefusal | None:
        """In a queue of strict order: the job that must start before this one."""
        if not self._strict(entry.job.queue):
            return None
        head = self._lines[entry.job.queue][0][1]
        if head is entry:
            return None
        return PlacementRefusal("priority", {"queue": entry.job.queue, "head": head.job.name})

    def _first(self, group: WaitingLine) -> WaitingJob:
        """Whose turn it is in a group; in a queue of strict order the queue's first job."""
        queue = group.entries[0].job.queue
        if self._strict(queue):
            head = self._lines[queue][0][1]
            return head if head.group == group.entries[0].group else group.entries[0]
        return group.first(self._now)

    def in_order(self) -> list[WaitingJob]:
        """The waiting jobs, by whose turn comes first as things are."""
        return sorted(self.waiting.values(), key=self._order)

    def _order(self, entry: WaitingJob) -> tuple[Any, ...]:
        queue = entry.job.queue
        share = self.quotas.share(queue) if self.quotas.account(queue).declared else 0.0
        urgency = entry.urgency(self._now) if self.settings.order == "response" else 0.0
        return (*self.admission.rank(entry, self._now), share, -urgency, entry.number)
