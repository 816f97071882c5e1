"""Use over time per queue and kind, and a picture of nodes × cards: data for plots, no drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.policies import Typical
from joymigrate.run.cluster.policies._gradient import WHOLE, Fragments

if TYPE_CHECKING:
    from joymigrate.run.cluster.entries import RunningJob
    from joymigrate.run.cluster.scheduler import Scheduler

POINTS = 400  # samples of one run
NODES_SHOWN = 512  # nodes in the picture


@dataclass(frozen=True, slots=True)
class ClusterTimeline:
    """Cards in use at equal steps of time: hours, per queue and per kind, and jobs that wait."""

    hours: tuple[float, ...]
    queues: dict[str, tuple[float, ...]]
    kinds: dict[str, tuple[float, ...]]
    capacity: dict[str, int]
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TimelineView:
    """One row per node: name, kind, leaf, and per card the queue that holds it.

    The signs are those of `find_holders`. `more` nodes are not shown.
    """

    rows: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    more: int = 0


class TimelineSampler:
    """Collects what a timeline needs while a simulation runs."""

    def __init__(self, scheduler: Scheduler, first: float, last: float) -> None:
        self.scheduler = scheduler
        self.first = first
        self.step = (last - first) / POINTS
        self.next = first
        self.in_use = 0.0
        self.used: dict[str, float] = {}
        self.shot: TimelineView | None = None  # when most cards were in use
        self._most = -1.0
        self.peak = 0.0
        self.size = sum(int(m).bit_count() for m in scheduler.state.present) or 1
        self._area = 0.0
        self._since = first
        self._last = last
        self._at: list[float] = []
        self._queues: list[dict[str, float]] = []
        self._kinds: list[np.ndarray] = []
        self._waiting: list[int] = []
        self._lost: list[float] = []
        self._states: list[tuple[np.ndarray, np.ndarray]] = []

    def change(self, job: GangJob, sign: int) -> None:
        """A job starts (1) or stops (-1)."""
        self.in_use += sign * job.cards
        self.used[job.queue] = self.used.get(job.queue, 0.0) + sign * job.cards

    def until(self, now: float) -> None:
        """Count the time up to `now`, and sample at every step on the way."""
        self.peak = max(self.peak, 100 * self.in_use / self.size)
        end = min(now, self._last)
        if end > self._since:
            self._area += self.in_use * (end - self._since)
            self._since = end
        while self.next <= now and len(self._at) <= POINTS * 4:
            self._sample()
            self.next += self.step

    def _sample(self) -> None:
        if self.in_use > self._most * 1.02:
            self._most, self.shot = self.in_use, picture(self.scheduler)
        self._at.append((self.next - self.first) / 3600)
        state = self.scheduler.state
        held = cards.count(state.usable & ~state.idle)
        size = len(self.scheduler.quotas.kinds)
        self._queues.append(dict(self.used))
        self._kinds.append(np.bincount(state.kind, weights=held, minlength=size))
        self._waiting.append(len(self.scheduler.waiting))
        if len(self._states) <= POINTS // 8 and len(self._at) % 8 == 1:
            self._states.append((state.cpu.copy(), state.free.copy()))

    def mean_allocation(self, first: float, last: float) -> float:
        """Mean share of the cards in use between the first and the last arrival, in %."""
        return 100 * self._area / max(last - first, 1e-9) / self.size

    def fragmentation(self, demand: Sequence[Typical]) -> float:
        """Mean share of all cards that are free but of no use to the typical request, in %."""
        if not self._states or not demand:
            return 0.0
        fragments = Fragments(demand)
        bit = np.arange(16)
        values = [
            fragments.of(cpu, ((free[:, None] >> bit) & 1) * WHOLE).sum()
            for cpu, free in self._states
        ]
        return 100 * float(np.mean(values)) / WHOLE / self.size

    def timeline(self) -> ClusterTimeline:
        """The samples as series."""
        queues = sorted({name for sample in self._queues for name in sample})
        kinds = self.scheduler.quotas.kinds
        return ClusterTimeline(
            hours=tuple(round(at, 4) for at in self._at),
            queues={q: tuple(sample.get(q, 0.0) for sample in self._queues) for q in queues},
            kinds={
                kind.name: tuple(float(sample[i]) for sample in self._kinds)
                for i, kind in enumerate(kinds)
                if kind.cards
            },
            capacity=dict(self.scheduler.inventory.count()),
            waiting=tuple(self._waiting),
        )


def picture(scheduler: Scheduler) -> TimelineView:
    """Who holds which card right now."""
    nodes = scheduler.state.nodes
    held = find_holders(scheduler, lambda run: run.entry.job.queue, NODES_SHOWN)
    rows = [
        (node.name, node.kind.name, node.leaf, tuple(of))
        for node, of in zip(nodes, held, strict=False)
    ]
    return TimelineView(tuple(rows), max(0, len(nodes) - NODES_SHOWN))


def find_holders(
    scheduler: Scheduler, name: Callable[[RunningJob], str], most: int
) -> list[list[str]]:
    """Who has each card of each node: a name, `+` several of them with shares of it, `*` somebody
    else, `-` out of use, "" nobody. Only the first `most` nodes.
    """
    state = scheduler.state
    held: dict[tuple[int, int], str] = {}
    for run in scheduler.running.values():
        mine = name(run)
        for grant in run.placement:
            for card in cards.ids(grant.mask):
                held[grant.node, card] = mine if held.get((grant.node, card), mine) == mine else "+"
    return [
        [
            held.get((i, card))
            or ("*" if card in node.used else "")
            or ("" if state.ready[i] and int(state.usable[i]) >> card & 1 else "-")
            for card in range(node.kind.cards)
        ]
        for i, node in enumerate(state.nodes[:most])
    ]
