"""Whether a waiting job may start now, and where: limits, free cards, and cards held for another.

Starts nothing. What it remembers (sizes that fitted nowhere) lasts until `reopen`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.run.cluster import quota
from joymigrate.run.cluster.entries import NEVER, CardHold, Entry, Settings
from joymigrate.run.cluster.jobs import Job
from joymigrate.run.cluster.place import NO_ROOM, Placer, Shape
from joymigrate.run.cluster.reasons import Refusal
from joymigrate.run.cluster.state import Ints, Placement, State


class Admission:
    """Asks the queues' limits and the placer; `hold` are the cards held for the first job.

    `now` is the time in seconds, the same clock as `Hold.until`.
    """

    def __init__(
        self, state: State, quotas: quota.Quotas, placer: Placer, settings: Settings
    ) -> None:
        self.state = state
        self.quotas = quotas
        self.placer = placer
        self.settings = settings
        self.hold: CardHold | None = None
        self._kind_of = [quotas.number[node.kind.name] for node in state.nodes]
        self._expected: dict[int, dict[int, float] | None] = {}
        self._walls: dict[tuple[int, bool], list[tuple[int, int]]] = {}

    def reopen(self) -> None:
        """Something was given back: what fitted nowhere may fit now."""
        self._walls.clear()

    def admit(self, entry: Entry, now: float) -> Placement | Refusal:
        """A placement inside all limits, or the one reason why not."""
        job = entry.job
        expected = self.expected_use(entry)
        if expected is not None and len(job.tasks) == 1:
            shapes = self.placer.shapes(job, job.tasks[0])
            if not isinstance(shapes, Refusal) and len(shapes) > 1:
                return self._admit_any(entry, shapes, now)
        if expected is not None:
            refused = self._limits(job, expected) if self._same_kinds(job) else None
            if refused is not None:
                return refused
        return self._checked(job, self._place_beside_hold(entry, now))

    def _admit_any(self, entry: Entry, shapes: Sequence[Shape], now: float) -> Placement | Refusal:
        """Several kinds will do: the first whose limits and free cards allow it."""
        first: Refusal | None = None
        for shape in shapes:
            use = {self._kind_of[int(shape.pool.nodes[0])]: shape.task.card_share}
            outcome: Placement | Refusal | None = self._limits(entry.job, use)
            if outcome is None:
                hold = self.hold_for(entry, now)
                outcome = self._checked(entry.job, self.placer.place_shape(shape, hold))
            if not isinstance(outcome, Refusal):
                return outcome
            first = first or outcome
        if first is None:
            raise AssertionError("no shape was tried")
        return first

    def _limits(self, job: Job, use: dict[int, float]) -> Refusal | None:
        refused = self.quotas.over_max(job.queue, use)
        if refused is not None:
            return refused
        if "over-deserved" in self.quotas.account(job.queue).queue.eviction:
            return None
        return self.quotas.kept_for_others(job.queue, use, self.free_by_kind())

    def _checked(self, job: Job, placed: Placement | Refusal) -> Placement | Refusal:
        """The limits again, with the kinds that the placement really uses."""
        if isinstance(placed, Refusal) or self._same_kinds(job):
            return placed
        return self._limits(job, self.use(job, placed)) or placed

    def _same_kinds(self, job: Job) -> bool:
        """Whether every pod's kind was known before placing (each task names one kind)."""
        return all(len(task.kinds) == 1 for task in job.tasks)

    def free_by_kind(self) -> dict[int, float]:
        """Free cards per kind number (kinds are numbered in order of appearance everywhere)."""
        return dict(enumerate(self.state.kind_free))

    def rank(self, entry: Entry, now: float) -> tuple[Any, ...]:
        """The class of a waiting job; the lower one goes first. Inside it the shares decide."""
        job = entry.job
        account = self.quotas.account(job.queue)
        use = self.expected_use(entry) if account.declared else None
        claims = use is not None and self.quotas.guaranteed(job.queue, use)
        late = now - entry.since > self.settings.patience
        return (not claims, not late, -account.queue.priority, -job.priority)

    def hold_for(self, entry: Entry, now: float) -> Ints | None:
        """The held cards that this job must leave alone: those held for its class or a higher."""
        hold = self.hold
        if hold is None or hold.entry is entry or self.in_time(entry.job, now):
            return None
        return None if self.rank(entry, now) < self.rank(hold.entry, now) else hold.mask

    def breaks_hold(self, entry: Entry, placement: Placement, now: float) -> bool:
        """Whether this start takes held cards for longer than they are to spare."""
        hold = self.hold
        if hold is None or hold.entry is entry or self.in_time(entry.job, now):
            return False
        return any(grant.mask & int(hold.mask[grant.node]) for grant in placement)

    def in_time(self, job: Job, now: float) -> bool:
        """Whether a job that starts now ends before the held cards are needed."""
        hold, minutes = self.hold, job.minutes
        if hold is None or hold.until == NEVER or minutes is None:
            return False
        return now + minutes * 60 <= hold.until

    def _place_beside_hold(self, entry: Entry, now: float) -> Placement | Refusal:
        """Place; when only held cards would do, say for whom they are held."""
        mask = self.hold_for(entry, now)
        if self._walled(entry, mask is not None):
            return NO_ROOM
        placed = self.placer.place(entry.job, mask)
        if not isinstance(placed, Refusal) or placed.permanent:
            return placed
        if mask is not None and self.hold is not None and not self._walled(entry, False):
            if not isinstance(self.placer.place(entry.job), Refusal):
                until = self.hold.until
                left = f"in {(until - now) / 60:.0f} minutes"
                when = "unknown" if until == NEVER else left
                return Refusal("held", {"head": self.hold.entry.job.name, "until": when})
            self._wall(entry, False)
        self._wall(entry, mask is not None)
        return placed

    def _plain(self, entry: Entry) -> tuple[int, int, int] | None:
        """Pool, pods and cards of a job whose failing says something about larger ones."""
        job = entry.job
        if len(job.tasks) > 1 or job.sp_block or job.leaf == "one" or job.numa == "one":
            return None
        task = job.tasks[0]
        shapes = self.placer.shapes(job, task)
        if isinstance(shapes, Refusal) or len(shapes) > 1 or not task.cards:
            return None
        pool = shapes[0].pool
        return (id(pool), task.pods, task.cards) if pool.kind.rule == "count" else None

    def _wall(self, entry: Entry, held: bool) -> None:
        """Remember that this many pods of this size fit nowhere until something is given back."""
        plain = self._plain(entry)
        task = entry.job.tasks[0]
        if plain is not None and not task.cpu_milli and not task.memory_mib:
            self._walls.setdefault((plain[0], held), []).append(plain[1:])

    def _walled(self, entry: Entry, held: bool) -> bool:
        """Whether a smaller or equal request on the same nodes has failed since."""
        if entry.job.cards > sum(self.state.kind_free) and not self._shares(entry.job):
            return True
        plain = self._plain(entry)
        if plain is None:
            return False
        walls = self._walls.get((plain[0], held), ())
        return any(pods <= plain[1] and cards_ <= plain[2] for pods, cards_ in walls)

    def _shares(self, job: Job) -> bool:
        return any(task.milli for task in job.tasks)

    def use(self, job: Job, placement: Placement) -> dict[int, float]:
        """Cards per kind of a placed job."""
        return quota.use_of(job, [self._kind_of[grant.node] for grant in placement])

    def expected_use(self, entry: Entry) -> dict[int, float] | None:
        """Cards per kind that a job will use; None for one that can never start."""
        if entry.group not in self._expected:
            self._expected[entry.group] = self._expect(entry.job)
        return self._expected[entry.group]

    def _expect(self, job: Job) -> dict[int, float] | None:
        use: dict[int, float] = {}
        for task in job.tasks:
            shapes = self.placer.shapes(job, task)
            if isinstance(shapes, Refusal):
                return None
            if task.cards or task.milli:
                number = self._kind_of[int(shapes[0].pool.nodes[0])]
                use[number] = use.get(number, 0.0) + task.card_share
        return use
