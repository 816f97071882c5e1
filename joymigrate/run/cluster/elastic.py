"""Elastic jobs: those with `min_pods` start smaller, shrink before anybody is stopped, and grow.

A job that runs on n of its N pods is taken to advance at n/N of its speed. It is told to save and
go on with another number of pods: its attempt ends, and one of the other size begins at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from joymigrate.run.cluster import eviction
from joymigrate.run.cluster.entries import NEVER, RunningJob, WaitingJob, spare_pods
from joymigrate.run.cluster.events import Action, Evict, Start
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.state import ClusterState, Grant, Placement
from joymigrate.run.cluster.waiting_jobs import WaitingJobs

Found = TypeVar("Found")


def of_size(whole: GangJob, pods: int, minutes: float | None) -> GangJob:
    """A job on so many of its pods, which then takes so long."""
    return replace(whole, tasks=(replace(whole.tasks[0], pods=pods),), minutes=minutes)


def find_most(low: int, high: int, attempt: Callable[[int], Found | None]) -> Found | None:
    """What was found for the most pods; None: not even for the fewest, which is mostly so."""
    best = attempt(low) if low <= high else None
    while best is not None and low < high:
        pods = (low + high + 1) // 2
        found = attempt(pods)
        if found is None:
            high = pods - 1
        else:
            best, low = found, pods
    return best


class Resizing(WaitingJobs):
    """The part of a scheduler that gives elastic jobs other numbers of pods."""

    state: ClusterState
    guess: Placer
    elastic: dict[str, RunningJob]  # running jobs that may have other numbers of pods

    def _start(
        self, entry: WaitingJob, placement: Placement, started: float | None = None
    ) -> Start:
        """Grant a job its cards."""
        raise NotImplementedError

    def _end(self, name: str) -> None:
        """Give a running job's cards back."""
        raise NotImplementedError

    def _sized(self, entry: WaitingJob, pods: int) -> WaitingJob:
        """The waiting job as one of so many pods."""
        whole = entry.whole or entry.job
        minutes = None if whole.minutes is None else whole.minutes * whole.pods / pods
        job = whole if pods == whole.pods else of_size(whole, pods, minutes)
        return replace(entry, job=job, group=self._group(job), whole=whole)

    def _start_smaller(self, entry: WaitingJob, actions: list[Action]) -> bool:
        """Start an elastic job on as many pods as fit now; whether it did."""
        if not (self.settings.elastic and entry.job.elastic):
            return False

        def attempt(pods: int) -> tuple[WaitingJob, Placement] | None:
            sized = self._sized(entry, pods)
            outcome = self.admission.admit(sized, self._now)
            return None if isinstance(outcome, PlacementRefusal) else (sized, outcome)

        best = find_most(entry.job.min_pods, entry.job.pods - 1, attempt)
        if best is None:
            return False
        self._begin(entry, *best, actions)
        return True

    def _begin(
        self, entry: WaitingJob, sized: WaitingJob, placement: Placement, actions: list[Action]
    ) -> None:
        """Start a waiting job in a size."""
        self._unwait(entry)
        if sized.job is not entry.job:
            entry.whole, entry.job = entry.job, sized.job
        actions.append(self._start(entry, placement))

    def _start_by_shrinking(self, entry: WaitingJob, actions: list[Action]) -> bool:
        """Take pods that running elastic jobs can do without, as few as let this job start."""
        now, job = self._now, entry.job
        if not self.settings.elastic:
            return False
        shrinkable = [
            run
            for run in self.elastic.values()
            if now - run.started >= run.entry.job.resize_after * 60
            and run.entry.job.priority <= job.priority
            and spare_pods(run)
        ]
        shrinkable.sort(key=lambda run: (run.entry.job.priority, -spare_pods(run), run.started))
        pods = [
            eviction.Victim(run.entry.job, (grant,), run.started, grant.mask.bit_count())
            for run in shrinkable
            for grant in reversed(run.placement[len(run.placement) - spare_pods(run) :])
        ]
        sized = self._sized(entry, job.min_pods) if job.elastic else entry
        deal = eviction.shorten(
            pods, lambda gone: self._placed(sized, [one.placement[0] for one in gone])
        )
        if deal is None:
            return False
        left = {one.job.name: list(self.running[one.job.name].placement) for one in deal.victims}
        for one in deal.victims:
            left[one.job.name].remove(one.placement[0])
        for name, grants in left.items():
            self._resize(self.running[name], tuple(grants), job.name, actions)
        self._begin(entry, sized, deal.placement, actions)
        return True

    def _placed(self, entry: WaitingJob, gone: Iterable[Grant]) -> Placement | None:
        """Where a job would go if these grants were given back; the state stays as it is."""
        gone = list(gone)
        self.state.give(gone)
        try:
            held = self.admission.hold_for(entry, self._now)
            placed = self.guess.place(entry.job, held)
        finally:
            self.state.take(gone)
        if isinstance(placed, PlacementRefusal):
            return None
        over = self.admission.limits(entry.job, self.admission.use(entry.job, placed))
        return None if over else placed

    def _grow(self, actions: list[Action]) -> None:
        """Give idle cards, for which nobody waits, to elastic jobs that run on fewer pods."""
        if not self.settings.elastic or any(
            self._why[number].code not in ("max", "min", "priority")
            if number in self._why
            else True
            for number in self._groups
        ):
            return
        for run in sorted(self.elastic.values(), key=lambda run: run.entry.number):
            whole = run.entry.whole
            if whole is None or len(run.placement) >= whole.pods:
                continue
            young = self._now - run.started < whole.resize_after * 60
            ending = run.ends - self._now < whole.resize_after * 60
            if young or ending or not any(self.state.kind_free):
                continue
            placement = self._larger(run, whole)
            if placement is not None:
                self._resize(run, placement, "", actions)

    def _larger(self, run: RunningJob, whole: GangJob) -> Placement | None:
        """A placement of more pods for a running job, on its own cards and free ones."""
        queue, more = run.entry.job.queue, len(run.placement) + 1

        def attempt(pods: int) -> Placement | None:
            return self._placed(self._sized(run.entry, pods), run.placement)

        self.quotas.add(queue, run.use, -1)
        best = attempt(whole.pods) or find_most(more, whole.pods - 1, attempt)
        self.quotas.add(queue, run.use, 1)
        return best

    def _resize(
        self, run: RunningJob, placement: Placement, by: str, actions: list[Action]
    ) -> None:
        """End a running job's attempt and begin one of another size."""
        entry, old, new = run.entry, len(run.placement), len(placement)
        whole, before = entry.whole or entry.job, entry.job
        left = None if run.ends == NEVER else max(run.ends - self._now, 0.0) * old / new
        minutes = None if left is None else (left + self.settings.resize_cost) / 60
        self._end(before.name)
        entry.whole, entry.job, entry.since = whole, of_size(whole, new, minutes), self._now
        verb = "shrinks" if new < old else "grows"
        why = f"{verb} from {old} to {new} pods" + (f" for job {by}" if by else "")
        actions.append(Evict(before, by, why, resize=True))
        actions.append(self._start(entry, placement))
