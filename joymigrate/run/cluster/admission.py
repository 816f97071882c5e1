"""Whether a waiting job may start now, and where: limits, free cards, and cards held for another.

Starts nothing. What it remembers holds for one version of the state, the quotas or the holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joymigrate.run.cluster import quota
from joymigrate.run.cluster.entries import NEVER, CardHold, ClusterSettings, WaitingJob
from joymigrate.run.cluster.fits import free_of
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.place import NO_ROOM, Flags, Placer
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.shape import TaskShape
from joymigrate.run.cluster.shortfall import explain, explain_shape
from joymigrate.run.cluster.state import ClusterState, Ints, Placement

MOST_MASKS = 32  # unions of holds that are remembered
HELD = PlacementRefusal("held", {"head": "", "until": ""})  # `why` says for whom
NODES_PER_HOLD = 5  # with a hold for fewer nodes, what is held lets little new through
MOST_KINDS = 64  # combinations of kinds of nodes that are looked through for a job


class Admission:
    """Asks the queues' limits and the placer; `holds` are the cards held for first jobs.

    `now` is the time in seconds, the same clock as `CardHold.until`. A refusal has its figures
    when `why` asks for them: most tries of a full cluster fail.
    """

    def __init__(
        self,
        state: ClusterState,
        quotas: quota.Quotas,
        placer: Placer,
        settings: ClusterSettings,
    ) -> None:
        self.state = state
        self.quotas = quotas
        self.placer = placer
        self.settings = settings
        self.holds: tuple[CardHold, ...] = ()
        self._kind_of = [quotas.number[node.kind.name] for node in state.nodes]
        self._expected: dict[int, dict[int, float] | None] = {}
        self._claims: dict[int, tuple[int, bool]] = {}
        self._room: tuple[int, dict[tuple[Any, ...], int]] = (-1, {})
        self._covered: tuple[tuple[CardHold, ...], dict[int, bool]] = ((), {})
        self._meets: dict[tuple[CardHold, int], bool] = {}
        self._masks: dict[tuple[CardHold, ...], Ints] = {}

    def admit(self, entry: WaitingJob, now: float) -> Placement | PlacementRefusal:
        """A placement inside all limits, or the one reason why not."""
        self.state.run = None if entry.bound_s is None else (now, now + entry.bound_s)
        try:
            return self._admit(entry, now)
        finally:
            self.state.run = None

    def _admit(self, entry: WaitingJob, now: float) -> Placement | PlacementRefusal:
        job = entry.job
        if entry.possible is not job:
            never = self.never(entry)
            if never is not None:
                return never
            entry.possible = job
        first: PlacementRefusal | None = None
        for _, outcome in self._try_kinds(entry, now):
            if not isinstance(outcome, PlacementRefusal):
                return outcome
            first = first or outcome
        if first is not None:
            return first
        expected = self.expected_use(entry)
        if expected is not None:
            refused = self.limits(job, expected) if self._same_kinds(job) else None
            if refused is not None:
                return refused
        if self._same_kinds(job):
            return self._place_beside_hold(entry, now)
        placed = self.placer.place(
            job, self.hold_for(entry, now),
            lambda found: self.limits(job, self.use(job, found)) is None,
        )  # fmt: skip
        if not isinstance(placed, PlacementRefusal):
            return placed
        return self._checked(job, self._place_beside_hold(entry, now))

    def never(self, entry: WaitingJob) -> PlacementRefusal | None:
        """Why the job can never run, however full the cluster is now; else None.

        No node can run one of its tasks, or its queue's limit is below it on every kind of nodes.
        """
        job, first = entry.job, None
        kinds: list[set[int]] = []
        for task in job.tasks:
            shapes = self.placer.shapes(job, task)
            if isinstance(shapes, PlacementRefusal):
                return shapes
            kinds.append({self._kind_of[int(shape.pool.nodes[0])] for shape in shapes})
        if self._same_kinds(job) or math.prod(map(len, kinds)) > MOST_KINDS:
            return None  # the limits are asked before a place is looked for
        for chosen in itertools.product(*kinds):
            use: dict[int, float] = {}
            for kind, task in zip(chosen, job.tasks, strict=True):
                use[kind] = use.get(kind, 0.0) + task.card_share
            refused = self.quotas.beyond_max(job.queue, use)
            if refused is None:
                return None
            first = first or refused
        return first

    def _try_kinds(
        self, entry: WaitingJob, now: float
    ) -> Iterator[tuple[TaskShape, Placement | PlacementRefusal]]:
        """Where several kinds of nodes will do: whether limits and free cards of each allow it."""
        job = entry.job
        shapes = self.placer.shapes(job, job.tasks[0])
        if len(job.tasks) > 1 or isinstance(shapes, PlacementRefusal) or len(shapes) == 1:
            return
        for shape in shapes:
            use = {self._kind_of[int(shape.pool.nodes[0])]: shape.task.card_share}
            outcome: Placement | PlacementRefusal | None = self.limits(job, use)
            if outcome is None:
                hold = self.hold_for(entry, now)
                outcome = self._checked(job, self.placer.place_shape(shape, hold))
            yield shape, outcome

    def limits(self, job: GangJob, use: dict[int, float]) -> PlacementRefusal | None:
        """Why the queues' limits do not let a job use so many cards per kind, or None."""
        refused = self.quotas.over_max(job.queue, use)
        if refused is not None:
            return refused
        if "over-deserved" in self.quotas.account(job.queue).queue.eviction:
            return None
        return self.quotas.kept_for_others(job.queue, use, self.free_by_kind())

    def kept_back(self, entry: WaitingJob) -> bool:
        """Whether the queues' limits alone keep a waiting job back, whatever place it gets."""
        use = self.expected_use(entry) if self._same_kinds(entry.job) else None
        return use is not None and self.limits(entry.job, use) is not None

    def _checked(
        self, job: GangJob, placed: Placement | PlacementRefusal
    ) -> Placement | PlacementRefusal:
        """The limits again, with the kinds that the placement really uses."""
        if isinstance(placed, PlacementRefusal) or self._same_kinds(job):
            return placed
        return self.limits(job, self.use(job, placed)) or placed

    def _same_kinds(self, job: GangJob) -> bool:
        """Whether every pod's kind is known before placing: each task has one kind of nodes."""
        for task in job.tasks:
            if len(task.kinds) != 1:
                shapes = self.placer.shapes(job, task)
                if (
                    isinstance(shapes, PlacementRefusal)
                    or len(shapes) != 1
                    or not shapes[0].pool.one_kind
                ):
                    return False
        return True

    def free_by_kind(self) -> dict[int, float]:
        """Free cards per kind number (kinds are numbered in order of appearance everywhere)."""
        return dict(enumerate(self.state.kind_free))

    def rank(self, entry: WaitingJob, now: float) -> tuple[Any, ...]:
        """The class of a waiting job; the lower one goes first. Inside it the shares decide."""
        job = entry.job
        account = self.quotas.account(job.queue)
        use = self.expected_use(entry) if account.declared else None
        claims = use is not None and self._guaranteed(entry, use)
        starves = self.settings.order == "submission" or job.minutes is None
        late = starves and now - entry.since > self.settings.patience
        return (not claims, not late, -account.queue.priority, -job.priority)

    def hold_for(self, entry: WaitingJob, now: float) -> Ints | None:
        """The cards that this job must leave alone: held for its class or a higher."""
        return self.together(self.binding(entry, now))

    def binding(self, entry: WaitingJob, now: float) -> tuple[CardHold, ...]:
        """The holds that this job must respect."""
        others = [
            hold
            for hold in self.holds
            if hold.entry.number != entry.number and not in_time(entry, hold, now)
        ]
        if not others:
            return ()
        mine = self.rank(entry, now)
        return tuple(hold for hold in others if not mine < self.rank(hold.entry, now))

    def broken(self, entry: WaitingJob, placement: Placement, now: float) -> list[CardHold]:
        """The holds whose cards this start takes for longer than they are to spare."""
        return [
            hold
            for hold in self.holds
            if hold.entry.number != entry.number
            and not in_time(entry, hold, now)
            and any(grant.mask & int(hold.mask[grant.node]) for grant in placement)
        ]

    def cards_suffice(self, entry: WaitingJob, now: float) -> bool:
        """Whether the free cards alone may do, without a look at CPU, memory and leaves."""
        task = entry.job.tasks[0]
        if len(entry.job.tasks) > 1 or not (task.cpu_milli or task.memory_mib):
            return False
        return not self.too_few(entry, self.binding(entry, now))

    def fills_a_gap(self, entry: WaitingJob, now: float) -> bool:
        """Whether a job that starts now ends before some held cards are needed."""
        return entry.bound_s is not None and entry.bound_s <= self.longest_gap(now) * 60

    def longest_gap(self, now: float) -> float:
        """Minutes until the last held cards are needed whose time is known, or 0."""
        ends = [hold.until for hold in self.holds if hold.until != NEVER]
        return max(0.0, max(ends, default=now) - now) / 60

    def covered(self, entry: WaitingJob) -> bool:
        """Whether as many jobs as may have cards held on nodes that this job could use do."""
        if not self.holds:
            return False
        if self._covered[0] != self.holds:
            self._covered = self.holds, {}
            self._meets = {key: met for key, met in self._meets.items() if key[0] in self.holds}
        known = self._covered[1]
        if entry.group not in known:
            known[entry.group] = self._covers(entry)
        return known[entry.group]

    def _covers(self, entry: WaitingJob) -> bool:
        mine = self.placer.nodes_for(entry.job)
        there = self.holds_on(mine)
        if any(hold.until == NEVER for hold in there):
            return True  # nobody knows for how long it takes cards from all others
        return len(there) >= max(1, min(self.settings.holds, int(mine.sum()) // NODES_PER_HOLD))

    def holds_on(self, nodes: Flags) -> list[CardHold]:
        """The holds for jobs that could use one of these nodes."""
        found = []
        for hold in self.holds:  # most jobs may use the same nodes: there are few different ones
            key = hold, id(nodes)
            if key not in self._meets:
                self._meets[key] = bool((hold.nodes & nodes).any())
            if self._meets[key]:
                found.append(hold)
        return found

    def _place_beside_hold(self, entry: WaitingJob, now: float) -> Placement | PlacementRefusal:
        """Place; `HELD` when held cards may do, which `why` looks into."""
        holds = self.binding(entry, now)
        placed: Placement | PlacementRefusal = NO_ROOM
        if not self.too_few(entry, holds):
            placed = self.placer.place(entry.job, self.together(holds))
            if not isinstance(placed, PlacementRefusal) or placed.permanent:
                return placed
        return placed if not holds or self.too_few(entry, ()) else HELD

    def why(self, entry: WaitingJob, now: float) -> PlacementRefusal | None:
        """Why a job may not start now, with the figures of this moment; None where it may.

        Where several kinds would do, why each of them does not.
        """
        outcome = self.admit(entry, now)
        if not isinstance(outcome, PlacementRefusal) or outcome.permanent:
            return outcome if isinstance(outcome, PlacementRefusal) else None
        if outcome == HELD and isinstance(self.placer.place(entry.job), PlacementRefusal):
            outcome = NO_ROOM
        holds = self.binding(entry, now)
        hold = self.together(holds)
        kinds = {
            one.reason: one
            for shape, tried in self._try_kinds(entry, now)
            if isinstance(tried, PlacementRefusal)
            for one in [explain_shape(self.state, shape, hold) if tried == NO_ROOM else tried]
        }
        if kinds:
            first, *others = kinds.values()
            outcome = replace(first, others=tuple(others))
        elif outcome == HELD:
            outcome = self._held(entry, holds, now)
        elif outcome == NO_ROOM:
            outcome = explain(self.placer, entry.job, hold)
        return self._named(entry, outcome, now)

    def _named(self, entry: WaitingJob, refusal: PlacementRefusal, now: float) -> PlacementRefusal:
        """A refusal that says for whom the free cards are kept that it leaves out."""
        if not refusal.facts.get("kept_cards"):
            return refusal
        free, nodes = self.state.free, self.placer.nodes_for(entry.job)
        kept = {f"job {hold.entry.job.name}": hold.mask for hold in self.binding(entry, now)}
        names = [name for name, mask in kept.items() if bool((mask & free)[nodes].any())]
        return replace(refusal, facts={**refusal.facts, "whose": " and ".join(names)})

    def _held(self, entry: WaitingJob, binding: Sequence[CardHold], now: float) -> PlacementRefusal:
        """For whom the cards are held that this job would have: one hold where one is enough."""
        for hold in binding:
            rest = self.together(tuple(other for other in binding if other is not hold))
            if not isinstance(self.placer.place(entry.job, rest), PlacementRefusal):
                binding = [hold]
                break
        until = max(hold.until for hold in binding)
        when = "unknown" if until == NEVER else f"in {(until - now) / 60:.0f} minutes"
        heads = " and ".join(hold.entry.job.name for hold in binding)
        return PlacementRefusal("held", {"head": heads, "until": when})

    def too_few(self, entry: WaitingJob, holds: tuple[CardHold, ...]) -> bool:
        """Whether the free cards alone, without these, hold too few of the job's pods on any kind.

        A look that all jobs of one size share; CPU, leaves and the like may make it fewer still.
        """
        job = entry.job
        if len(job.tasks) > 1 or not job.tasks[0].cards:
            return False
        shapes = self.placer.shapes(job, job.tasks[0])
        return not isinstance(shapes, PlacementRefusal) and all(
            self._room_for(shape, holds) < shape.task.pods for shape in shapes
        )

    def _room_for(self, shape: TaskShape, holds: tuple[CardHold, ...]) -> int:
        """Pods of this size that the free cards of a pool hold, without those held."""
        if not shape.task.cards:
            return shape.task.pods
        if self._room[0] != self.state.version:
            self._room = self.state.version, {}
        known, key = self._room[1], (shape.pool, id(shape.choice), holds)
        if key not in known:
            free = free_of(self.state, shape.pool, self.together(holds))
            known[key] = int(shape.choice.fits[free].sum())
        return known[key]

    def together(self, holds: tuple[CardHold, ...]) -> Ints | None:
        """All cards of these holds, per node; None where there are none."""
        if holds and holds not in self._masks:
            if len(self._masks) > MOST_MASKS:
                self._masks.clear()
            self._masks[holds] = np.bitwise_or.reduce([hold.mask for hold in holds])
        return self._masks[holds] if holds else None

    def _guaranteed(self, entry: WaitingJob, use: dict[int, float]) -> bool:
        """Whether a job stays inside its queue's MIN; remembered until somebody's use changes."""
        known = self._claims.get(entry.group)
        if known is None or known[0] != self.quotas.version:
            known = self.quotas.version, self.quotas.guaranteed(entry.job.queue, use)
            self._claims[entry.group] = known
        return known[1]

    def use(self, job: GangJob, placement: Placement) -> dict[int, float]:
        """Cards per kind of a placed job."""
        return quota.use_of(job, [self._kind_of[grant.node] for grant in placement])

    def expected_use(self, entry: WaitingJob) -> dict[int, float] | None:
        """Cards per kind that a job will use; None for one that can never start."""
        if entry.group not in self._expected:
            self._expected[entry.group] = self._expect(entry.job)
        return self._expected[entry.group]

    def _expect(self, job: GangJob) -> dict[int, float] | None:
        use: dict[int, float] = {}
        for task in job.tasks:
            shapes = self.placer.shapes(job, task)
            if isinstance(shapes, PlacementRefusal):
                return None
            if task.cards or task.milli:
                number = self._kind_of[int(shapes[0].pool.nodes[0])]
                use[number] = use.get(number, 0.0) + task.card_share
        return use


def in_time(entry: WaitingJob, hold: CardHold, now: float) -> bool:
    """Whether a job that starts now ends before these held cards are needed, as far as known."""
    bound_s = entry.bound_s
    return hold.until != NEVER and bound_s is not None and now + bound_s <= hold.until
