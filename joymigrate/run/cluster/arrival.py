"""The published arrival experiment: how much of a cluster can be allocated before pods fail.

Pods are drawn from a trace until their requests add up to `ratio` times the cluster's cards, in an
order shuffled by the seed; nothing ever ends; a pod that does not fit is dropped. A trace that asks
for more than that is cut, a smaller one is filled up with copies drawn at random.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joymigrate.run.cluster import policies
from joymigrate.run.cluster.cards import count
from joymigrate.run.cluster.demand import typical
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import Submitted
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.policies._gradient import WHOLE, Fragments, shares_left
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.state import ClusterState
from joymigrate.run.cluster.traces import JobTrace

MARKS = (0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)  # offered load at which the allocation is noted


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """Result of one run: allocated share of the cards (in %) at each offered load (in %)."""

    policy: str
    seed: int
    pods: int
    refused: tuple[tuple[str, str], ...]
    allocation_pct: float
    at: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    decisions: int = 0
    fragmentation_pct: float = 0.0


def draw(trace: JobTrace, cards: float, ratio: float, seed: int) -> list[int]:
    """Numbers of the trace's jobs in the order they are offered."""
    rng = np.random.default_rng(seed)
    asks = np.array([arrival.job.cards for arrival in trace.arrivals])
    need, total = cards * ratio, float(asks.sum())
    order = [int(i) for i in rng.permutation(len(asks))]
    if total > need:
        reached = np.cumsum(asks[order])
        return order[: int(np.searchsorted(reached, need)) + 1]
    while total < need and asks.any():
        one = int(rng.integers(len(asks)))
        order.append(one)
        total += float(asks[one])
    return [int(i) for i in rng.permutation(order)]


def offer(inventory: Inventory, trace: JobTrace, policy: str, ratio: float, seed: int) -> LoadSweep:
    """Run the experiment once."""
    jobs = [arrival.job for arrival in trace.arrivals]
    order = draw(trace, inventory.cards, ratio, seed)
    began = time.perf_counter()
    scheduler = Scheduler(
        inventory,
        trace.queues,
        policies.get(policy, typical(jobs)),
        dict(trace.weights),
        ClusterSettings(hold=False),
    )
    asked, at = 0.0, {}
    marks = [mark for mark in MARKS if mark <= ratio]
    offered = 0
    for number, index in enumerate(order):
        job = jobs[index]
        scheduler.on(Submitted(replace(job, name=f"{job.name}#{number}")))
        asked += job.cards
        offered += 1
        while marks and asked >= inventory.cards * marks[0] * (1 - 1e-9):
            at[round(marks.pop(0) * 100)] = measure_allocated(scheduler.state)
    refused = tuple(
        (name, refusal.reason)
        for name in [*scheduler.waiting, *scheduler.refused]
        if (refusal := scheduler.why(name)) is not None
    )
    seconds = time.perf_counter() - began
    final = measure_allocated(scheduler.state)
    return LoadSweep(
        policy, seed, offered, refused, final, at, seconds, scheduler.decisions,
        measure_fragments(scheduler.state, jobs),
    )  # fmt: skip


def measure_fragments(state: ClusterState, jobs: Sequence[GangJob]) -> float:
    """Share of all cards that is free but of no use to the typical request, in %."""
    left = shares_left(state, slice(None))
    lost = Fragments(typical(jobs)).of(state.cpu, left).sum()
    return 100 * float(lost) / (WHOLE * max(1, int(count(state.present).sum())))


def measure_allocated(state: ClusterState) -> float:
    """Allocated share of all present cards, in %."""
    left = float(shares_left(state, slice(None)).sum())
    return 100 * (1 - left / (WHOLE * max(1, int(count(state.present).sum()))))


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0
