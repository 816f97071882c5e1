"""Which running jobs a claim may stop, and the smallest stop that lets it start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joymigrate.run.cluster import eviction, quota
from joymigrate.run.cluster.allocations import Allocations
from joymigrate.run.cluster.entries import Entry, Running
from joymigrate.run.cluster.jobs import Job
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.reasons import Refusal
from joymigrate.run.cluster.state import Ints, Placement, State


class Preemption:
    """Reads the scheduler's running jobs (all, and by queue); stops nothing itself.

    `guess` answers questions about states that never were.
    """

    def __init__(
        self,
        state: State,
        quotas: quota.Quotas,
        holdings: Allocations,
        guess: Placer,
        running: Mapping[str, Running],
        by_queue: Mapping[str, Mapping[str, Running]],
    ) -> None:
        self.state = state
        self.quotas = quotas
        self.holdings = holdings
        self.guess = guess
        self.running = running
        self.by_queue = by_queue
        self.kind_of = [quotas.number[node.kind.name] for node in state.nodes]

    def deal(
        self,
        entry: Entry,
        use: quota.Use | None,
        refused: Refusal,
        now: float,
        hold: Ints | None = None,
    ) -> eviction.EvictionPlan | None:
        """The running jobs to stop for this claim and where it goes then; None: it must wait.

        `use` is what the claim will use, `now` the time in seconds, `hold` cards held for another.
        """
        limited = refused.code == "max"
        candidates = [] if use is None else self._candidates(entry, use, limited, now)
        if not candidates:
            return None

        def attempt(victims: Sequence[eviction.Victim]) -> Placement | None:
            names = [victim.job.name for victim in victims]
            if limited:
                for name in names:
                    self.quotas.add(entry.job.queue, self.running[name].use, -1)
            try:
                with self.holdings.without(self.state, self.holdings.flags(names)):
                    placed = self.guess.place(entry.job, hold)
                if isinstance(placed, Refusal):
                    return None
                kinds = [self.kind_of[grant.node] for grant in placed]
                used = quota.use_of(entry.job, kinds)
                return None if self.quotas.over_max(entry.job.queue, used) else placed
            finally:
                if limited:
                    for name in names:
                        self.quotas.add(entry.job.queue, self.running[name].use)

        return eviction.search(candidates, attempt)

    def _candidates(
        self, entry: Entry, use: quota.Use, own_queue_only: bool, now: float
    ) -> list[eviction.Victim]:
        """Running jobs that the queues' policies let this claim stop."""
        claim = entry.job
        guaranteed = self.quotas.guaranteed(claim.queue, use)
        entitled = guaranteed or self.quotas.entitled(claim.queue, use)
        found: list[Running] = []
        for queue, by_name in self.by_queue.items():
            policy = self.quotas.account(queue).queue
            by_rank = "lower-priority" in policy.eviction
            by_right = entitled and "over-deserved" in policy.eviction and queue != claim.queue
            if not by_name or not (by_rank or by_right) or "never" in policy.eviction:
                continue
            latest = now - policy.min_runtime * 60
            runs = [run for run in by_name.values() if run.started <= latest]
            if queue == claim.queue:
                found += [r for r in runs if r.entry.job.priority < claim.priority]
            elif not own_queue_only:
                found += self._beyond(queue, runs, claim, guaranteed, by_right)
        if not found:
            return []
        kinds = self._kinds_wanted(claim)
        return [
            eviction.Victim(r.entry.job, r.placement, r.started, r.entry.job.cards)
            for r in found
            if own_queue_only or kinds & r.use.keys()
        ]

    def _beyond(
        self, queue: str, runs: list[Running], claim: Job, guaranteed: bool, by_right: bool
    ) -> list[Running]:
        """Those of another queue's jobs that lie outside what it is entitled to."""
        if not by_right:
            runs = [run for run in runs if run.entry.job.priority < claim.priority]
        if not runs:
            return []
        order = sorted(
            self.by_queue[queue].values(), key=lambda r: (-r.entry.job.priority, r.entry.number)
        )
        uses = [(run.entry.job.name, run.use) for run in order]
        outside = self.quotas.beyond(queue, uses, deserved=not guaranteed)
        return [run for run in runs if run.entry.job.name in outside]

    def _kinds_wanted(self, job: Job) -> set[int]:
        wanted: set[int] = set()
        for task in job.tasks:
            shapes = self.guess.shapes(job, task)
            if not isinstance(shapes, Refusal):
                for shape in shapes:
                    wanted |= {self.kind_of[int(node)] for node in shape.pool.nodes}
        return wanted
