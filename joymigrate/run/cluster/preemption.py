"""Which running jobs a claim may stop, and the smallest stop that lets it start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from joymigrate.run.cluster import eviction, quota
from joymigrate.run.cluster.allocations import Allocations
from joymigrate.run.cluster.entries import RunningJob, WaitingJob, spare_pods
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.state import ClusterState, Ints, Placement


class Preemption:
    """Reads the scheduler's running jobs (all, and by queue); stops nothing itself.

    `guess` answers questions about states that never were.
    """

    def __init__(
        self,
        state: ClusterState,
        quotas: quota.Quotas,
        holdings: Allocations,
        guess: Placer,
        running: Mapping[str, RunningJob],
        by_queue: Mapping[str, Mapping[str, RunningJob]],
    ) -> None:
        self.state = state
        self.quotas = quotas
        self.holdings = holdings
        self.guess = guess
        self.running = running
        self.by_queue = by_queue
        self.kind_of = [quotas.number[node.kind.name] for node in state.nodes]
        accounts = quotas.accounts.values()
        self.by_rank = any("lower-priority" in one.queue.eviction for one in accounts)
        self.found = False  # whether the last claim could have stopped somebody
        self.ranks: dict[str, Counter[int]] = {}  # how many jobs of each priority run, by queue

    def count(self, job: GangJob, sign: int) -> None:
        """A job has started (1) or ended (-1)."""
        ranks = self.ranks.setdefault(job.queue, Counter())
        ranks[job.priority] += sign
        if not ranks[job.priority]:
            del ranks[job.priority]

    def deal(
        self,
        entry: WaitingJob,
        use: quota.Use | None,
        refused: PlacementRefusal,
        now: float,
        hold: Callable[[], Ints | None] = lambda: None,
    ) -> eviction.EvictionPlan | None:
        """The running jobs to stop for this claim and where it goes then; None: it must wait.

        `use` is what the claim will use, `now` the time in seconds; `hold` asks for the cards that
        are held for others.
        """
        wall = str(refused.facts["queue"]) if refused.code == "max" else ""
        self.found = False
        candidates = [] if use is None else self._candidates(entry, use, wall, now)
        if not candidates:
            return None
        self.found = True
        job, held = entry.job, hold()

        def allowed(placed: Placement) -> bool:
            kinds = [self.kind_of[grant.node] for grant in placed]
            return self.quotas.over_max(job.queue, quota.use_of(job, kinds)) is None

        def attempt(victims: Sequence[eviction.Victim]) -> Placement | None:
            runs = [self.running[victim.job.name] for victim in victims]
            for run in runs:
                self.quotas.add(run.entry.job.queue, run.use, -1)
            try:
                names = [run.entry.job.name for run in runs]
                with self.holdings.without(self.state, self.holdings.flags(names)):
                    placed = self.guess.place(job, held, allowed)
                return None if isinstance(placed, PlacementRefusal) else placed
            finally:
                for run in runs:
                    self.quotas.add(run.entry.job.queue, run.use)

        return eviction.search(candidates, attempt)

    def _candidates(
        self, entry: WaitingJob, use: quota.Use, wall: str, now: float
    ) -> list[eviction.Victim]:
        """Running jobs that the queues' policies let this claim stop.

        `wall` is the queue whose MAX is in the way, if one is: jobs inside it make room under it.
        """
        claim = entry.job
        found = [
            run
            for queue, by_right in self.stoppable(claim, use, wall).items()
            for run in self.by_queue[queue].values()
            if self._may_stop(claim, run, by_right, now)
        ]
        if not found:
            return []
        kinds = {self.kind_of[node] for node in self.guess.nodes_for(claim).nonzero()[0]}
        found = [run for run in found if wall or kinds & run.use.keys()]
        others = [run for run in found if run.entry.job.queue != claim.queue]
        safe = self._safe(claim, use) if others else set()
        return [
            eviction.Victim(run.entry.job, run.placement, run.started, run.entry.job.cards)
            for run in found
            if run.entry.job.name not in safe
        ]

    def stoppable(self, claim: GangJob, use: quota.Use, wall: str = "") -> dict[str, bool]:
        """Queues of which this claim may stop a job: any (True), or one of lower priority."""
        found: dict[str, bool] = {}
        entitled = self.quotas.entitled(claim.queue, use)
        if not (entitled or self.by_rank):
            return found
        for queue, ranks in self.ranks.items():
            policy = self.quotas.account(queue).queue.eviction
            if "never" in policy or (wall and wall not in self.quotas.chain(queue)):
                continue
            by_right = entitled and "over-deserved" in policy and queue != claim.queue
            lowest = min(ranks, default=claim.priority)
            if by_right or ("lower-priority" in policy and lowest < claim.priority):
                found[queue] = by_right
        return found

    def _may_stop(self, claim: GangJob, run: RunningJob, by_right: bool, now: float) -> bool:
        """Whether a job of a stoppable queue is old enough, and of lower priority if it must be."""
        old = run.started <= now - self.quotas.account(run.entry.job.queue).queue.min_runtime * 60
        return old and (by_right or run.entry.job.priority < claim.priority)

    def cards_on(self, node: int, claim: GangJob, queues: Mapping[str, bool], now: float) -> int:
        """The cards of a node whose jobs a claim may stop, or take some pods of: a mask."""
        mask = 0
        for name, held in self.holdings.on(node):
            run = self.running[name]
            right = queues.get(run.entry.job.queue)
            shrinks = bool(spare_pods(run)) and run.entry.job.priority <= claim.priority
            if shrinks or (right is not None and self._may_stop(claim, run, right, now)):
                mask |= held
        return mask

    def _safe(self, claim: GangJob, use: quota.Use) -> set[str]:
        """The running jobs that lie inside what their queues are entitled to against this claim."""
        runs = [run for by_name in self.by_queue.values() for run in by_name.values()]
        runs.sort(key=lambda run: (-run.entry.job.priority, run.entry.number))
        listed = [(run.entry.job.name, run.entry.job.queue, run.use) for run in runs]
        deserved = not self.quotas.guaranteed(claim.queue, use)
        return self.quotas.entitled_jobs(listed, claim.queue, deserved)
