"""The waiting jobs of a scheduler: groups of those that are alike, and whose turn it is."""

from __future__ import annotations

import bisect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joymigrate.run.cluster import fair_share, run_times
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
        self.by_queue: dict[str, dict[str, RunningJob]] = {}
        self._groups: dict[int, WaitingLine] = {}
        self._group_of: dict[tuple[Any, ...], int] = {}
        self._failed: set[int] = set()
        self._why: dict[int, PlacementRefusal] = {}
        self._lines: dict[str, list[tuple[int, WaitingJob]]] = {}  # of queues in strict order
        self.past: fair_share.Past = {}  # what users had of fair queues
        self.history: run_times.History = {}
        self._shares: dict[str, float] = {}  # of users, at this moment
        self._now = 0.0

    def _release(self, holds: Sequence[CardHold]) -> None:
        """Let go of held cards."""
        raise NotImplementedError

    def _group(self, job: GangJob) -> int:
        """Jobs of one number ask for the same cards under the same rules."""
        tasks = job.tasks
        if len(tasks) == 1 and (tasks[0].cpu_milli or tasks[0].memory_mib):
            tasks = (replace(tasks[0], cpu_milli=0, memory_mib=0),)
        user = job.user if self._half_life(job.queue) else ""
        key = (job.queue, user, job.priority, tasks, job.sp_block, job.leaf, job.numa, job.superpod)
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

    def _half_life(self, queue: str) -> float:
        """Hours after which its users' past use counts half; 0 where it does not count."""
        return self.quotas.account(queue).queue.half_life

    def fair_queues(self) -> list[str]:
        """The queues that are shared fairly between their users."""
        return [name for name in self.quotas.accounts if self._half_life(name)]

    def shares_of(self, queue: str) -> list[tuple[str, float]]:
        """Users of a fair queue and the card-hours that count against them, fewest first."""
        users = {run.entry.job.user for run in self.by_queue.get(queue, {}).values()}
        users |= {one.job.user for one in self.waiting.values() if one.job.queue == queue}
        known = (key.partition("\t") for key in self.past)
        users |= {user for name, _, user in known if name == queue}
        shares = [(self.share_of(GangJob("", (), queue, user=user)), user) for user in users]
        return [(user, round(hours, 3)) for hours, user in sorted(shares)]

    def share_of(self, job: GangJob) -> float:
        """Card-hours that count against a job's user in a fair queue; 0 in others."""
        half_life = self._half_life(job.queue)
        if not half_life:
            return 0.0
        key = fair_share.key_of(job.queue, job.user)
        if key not in self._shares:
            runs = [
                (run.entry.job.cards, run.started)
                for run in self.by_queue.get(job.queue, {}).values()
                if run.entry.job.user == job.user
            ]
            self._shares[key] = fair_share.total(self.past, key, runs, self._now, half_life)
        return self._shares[key]

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
        had = self.share_of(entry.job)
        return (*self.admission.rank(entry, self._now), share, had, -urgency, entry.number)
