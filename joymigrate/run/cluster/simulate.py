"""What would happen: a trace played against the scheduler, event by event, without a clock.

The scheduler sees exactly the events that Ray or Kubernetes would give it. Equal input and seed
give equal output, except for the measured decisions per second.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joymigrate.run.cluster import policies
from joymigrate.run.cluster.demand import typical
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import (
    Cancelled,
    ClusterTick,
    Ended,
    Event,
    Evict,
    Start,
    Submitted,
)
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.timeline import ClusterTimeline, TimelineSampler, TimelineView, picture
from joymigrate.run.cluster.traces import Arrival, JobTrace

HOUR = 3600.0


@dataclass(slots=True)
class SimulationCounts:
    """What a run has counted so far."""

    waits: list[float] = field(default_factory=list)
    waited: dict[str, float] = field(default_factory=dict)
    evictions: int = 0
    evicted_cards: float = 0.0
    claimed_cards: float = 0.0
    useless_evictions: int = 0
    breaches: int = 0
    blocked_s: float = 0.0
    deciding_s: float = 0.0
    lost_card_h: float = 0.0
    resizes: int = 0
    finished: dict[str, float] = field(default_factory=dict)  # when, in seconds
    never: dict[str, str] = field(default_factory=dict)  # jobs that can never start, and why
    by_queue: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of one run; times in hours, shares in percent."""

    policy: str
    seed: int
    jobs: int
    decisions: int
    decisions_per_s: float
    allocation_pct: float
    wait_mean_h: float
    wait_p99_h: float
    evictions: int
    unplaced: tuple[tuple[str, str], ...]
    blocked_pct: float
    fragmentation_pct: float
    fairness: float
    hours: float
    tally: SimulationCounts
    timeline: ClusterTimeline
    picture: TimelineView


def simulate(
    inventory: Inventory,
    trace: JobTrace,
    policy: str,
    seed: int = 0,
    queues: Sequence[Queue] = (),
    checkpoint_minutes: float | None = None,
    settings: ClusterSettings | None = None,
) -> Simulation:
    """Play a trace to its end."""
    demand = typical(arrival.job for arrival in trace.arrivals)
    scheduler = Scheduler(
        inventory,
        queues or trace.queues,
        policies.get(policy, demand),
        dict(trace.weights),
        settings or ClusterSettings(),
    )
    run = SimulationRun(scheduler, shuffle_jobs(trace, seed), checkpoint_minutes, trace.events)
    return run.play(policy, seed, demand)


def shuffle_jobs(trace: JobTrace, seed: int) -> list[Arrival]:
    """Jobs by arrival; those of one moment in an order drawn by the seed (0: as they stand)."""
    if seed == 0:
        return list(trace.arrivals)
    order = np.random.default_rng(seed).permutation(len(trace.arrivals))
    return sorted((trace.arrivals[int(i)] for i in order), key=lambda arrival: arrival.at)


def run_time(arrival: Arrival) -> float:
    """Seconds that a job runs: to its own end, or to its time limit."""
    limit = arrival.job.time_limit
    return arrival.seconds if limit is None else min(arrival.seconds, limit * 60)


class SimulationRun:
    """One simulation in progress: the queue of events and what is known about running jobs."""

    def __init__(
        self,
        scheduler: Scheduler,
        arrivals: list[Arrival],
        checkpoint_minutes: float | None,
        beside: Sequence[Event] = (),
    ) -> None:
        self.scheduler = scheduler
        self.arrivals = arrivals
        self.beside = beside  # what else happens, by time
        self.checkpoint_s = None if checkpoint_minutes is None else checkpoint_minutes * 60
        self.tally = SimulationCounts()
        self.left = {arrival.job.name: run_time(arrival) for arrival in arrivals}
        self.started: dict[str, tuple[float, int]] = {}
        self.ends: list[tuple[float, int, str]] = []
        self.whole = {arrival.job.name: arrival.job for arrival in arrivals}
        self.job_of = dict(self.whole)  # in the size that it runs in
        self.turn = 0  # numbers starts, so that an end of an evicted run is not taken for real
        self.samples = TimelineSampler(
            scheduler, arrivals[0].at, max(arrivals[-1].at, arrivals[0].at + 1)
        )

    def play(self, policy: str, seed: int, demand: Sequence[policies.Typical]) -> Simulation:
        """Feed all events in order of time."""
        first, last = self.arrivals[0].at, self.arrivals[-1].at
        now = first
        for at, events in self._batches():
            self._blocked(now, min(at, last))
            self.samples.until(at)
            now = at
            for event in events:
                if isinstance(event, Ended | Cancelled):
                    if isinstance(event, Ended) or event.job in self.started:
                        self.samples.change(self.job_of[event.job], -1)
                    self.tally.finished[event.job] = at
            began = time.perf_counter()
            actions = self.scheduler.on_all(events)
            self.tally.deciding_s += time.perf_counter() - began
            self._follow(actions, at)
        waits = np.array([*self.tally.waited.values()]) / HOUR
        self.samples.until(now)
        decisions = self.scheduler.decisions
        return Simulation(
            policy=policy,
            seed=seed,
            jobs=len(self.arrivals),
            decisions=decisions,
            decisions_per_s=decisions / max(self.tally.deciding_s, 1e-9),
            allocation_pct=self.samples.mean_allocation(first, last)
            if last > first
            else self.samples.peak,
            wait_mean_h=float(waits.mean()) if len(waits) else 0.0,
            wait_p99_h=float(np.percentile(waits, 99)) if len(waits) else 0.0,
            evictions=self.tally.evictions,
            unplaced=self._unplaced(),
            blocked_pct=100 * self.tally.blocked_s / max(last - first, 1.0),
            fragmentation_pct=self.samples.fragmentation(demand),
            fairness=self._fairness(),
            hours=(now - first) / HOUR,
            tally=self.tally,
            timeline=self.samples.timeline(),
            picture=self.samples.shot or picture(self.scheduler),
        )

    def _batches(self) -> Iterator[tuple[float, list[Event]]]:
        """Events of one moment together, ends before arrivals."""
        number = other = 0
        while number < len(self.arrivals) or self.ends or other < len(self.beside):
            next_end = self.ends[0][0] if self.ends else float("inf")
            next_in = self.arrivals[number].at if number < len(self.arrivals) else float("inf")
            at = min(next_end, next_in, *(event.at for event in self.beside[other : other + 1]))
            if at == float("inf"):
                return  # only jobs without an end are left
            events: list[Event] = []
            while self.ends and self.ends[0][0] <= at:
                _, turn, name = heapq.heappop(self.ends)
                if name in self.started and self.started[name][1] == turn:
                    self.left.pop(name, None)
                    del self.started[name]
                    events.append(Ended(name, at))
            while number < len(self.arrivals) and self.arrivals[number].at <= at:
                events.append(Submitted(self.arrivals[number].job, at))
                number += 1
            while other < len(self.beside) and self.beside[other].at <= at:
                event = self.beside[other]
                if not isinstance(event, Cancelled) or self.scheduler.entry(event.job):
                    events.append(event)
                other += 1
            if events:
                yield at, events
            elif self.scheduler.waiting:
                yield at, [ClusterTick(at)]

    def _follow(self, actions: Sequence[Any], now: float) -> None:
        started = {action.job.name for action in actions if isinstance(action, Start)}
        claims: set[str] = set()
        for action in actions:
            if isinstance(action, Start):
                self._begin(action, now)
            elif isinstance(action, Evict):
                self._stop(action, now)
                if action.resize:
                    continue
                self.tally.useless_evictions += action.by not in {*started, ""}
                if action.by not in claims:
                    claims.add(action.by)
                    run = self.scheduler.running.get(action.by)
                    self.tally.claimed_cards += run.entry.job.cards if run else 0
        for account in self.scheduler.quotas.accounts.values():
            self.tally.breaches += any(lim.used > lim.bound + 1e-6 for lim in account.max)

    def _begin(self, action: Start, now: float) -> None:
        name = action.job.name
        self.turn += 1
        self.tally.waited[name] = self.tally.waited.get(name, 0.0) + action.waited
        self.started[name] = (now, self.turn)
        self.samples.change(action.job, 1)
        self.job_of[name] = action.job
        if self.left[name] < float("inf"):
            heapq.heappush(self.ends, (now + self.left[name] / self._speed(name), self.turn, name))

    def _speed(self, name: str) -> float:
        """How fast a job advances in the size that it has now: as its share of the pods."""
        return self.job_of[name].pods / self.whole[name].pods

    def _stop(self, action: Evict, now: float) -> None:
        name = action.job.name
        began, _ = self.started.pop(name)
        ran = (now - began) * self._speed(name)
        if action.resize:
            self.left[name] += self.scheduler.settings.resize_cost * self._speed(name) - ran
            self.samples.change(action.job, -1)
            self.tally.resizes += 1
            return
        kept = 0.0 if self.checkpoint_s is None else ran - ran % max(self.checkpoint_s, 1.0)
        self.left[name] -= kept
        self.samples.change(action.job, -1)
        self.tally.evictions += 1
        self.tally.evicted_cards += action.job.cards
        self.tally.lost_card_h += (ran - kept) * action.job.cards / HOUR

    def _blocked(self, since: float, until: float) -> None:
        """Time in which the first waiting job has cards enough, but not where it needs them."""
        if until <= since or not self.scheduler.waiting:
            return
        refusal = self.scheduler.why(next(iter(self.scheduler.waiting)))
        if refusal is not None and refusal.code in ("shape", "leaf", "superpod"):
            self.tally.blocked_s += until - since

    def _unplaced(self) -> tuple[tuple[str, str], ...]:
        scheduler = self.scheduler
        names = [*scheduler.refused, *scheduler.waiting, *scheduler.gate.entries]
        found = [(name, why) for name in names if (why := self.scheduler.why(name)) is not None]
        self.tally.never = {name: why.reason for name, why in found if why.permanent}
        return tuple((name, why.reason) for name, why in found)

    def _fairness(self) -> float:
        """Jain's index over the queues' mean speed: run time / (run time + wait); 1 is equal."""
        sums: dict[str, list[float]] = {}
        for arrival in self.arrivals:
            waited = self.tally.waited.get(arrival.job.name)
            if waited is not None and arrival.seconds not in (0, float("inf")):
                speed = arrival.seconds / (arrival.seconds + waited)
                sums.setdefault(arrival.job.queue, []).append(speed)
        means = np.array([np.mean(speeds) for speeds in sums.values()])
        if not len(means):
            return 1.0
        return float(means.sum() ** 2 / (len(means) * (means**2).sum()))
