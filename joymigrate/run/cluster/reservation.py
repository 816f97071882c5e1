"""When and where a job that fits nowhere will fit: the earliest expected ends that make room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.allocations import NODE, SLOT, Allocations, Flags
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.state import ClusterState, Ints, Placement, masks_of


@dataclass(frozen=True, slots=True)
class Reservation:
    """The cards a job will get, and at what time; `stated`: jobs say themselves that they end."""

    placement: Placement
    until: float
    stated: bool

    def mask(self, nodes: int) -> Ints:
        """The cards per node."""
        mask = np.zeros(nodes, dtype=np.int64)
        for node, held in masks_of(self.placement).items():
            mask[node] = held
        return mask


def earliest(
    state: ClusterState,
    holdings: Allocations,
    placer: Placer,
    job: GangJob,
    barred: Ints | None = None,
) -> Reservation | None:
    """The first expected end after which `job` can start, or None when even all do not help.

    Jobs whose end nobody knows come last; the state is left as it was. `barred` are the cards that
    the job must leave alone.
    """
    nodes = placer.nodes_for(job)
    live = np.nonzero(holdings.live & on_nodes(holdings, nodes))[0]
    order = live[np.argsort(holdings.expected[live], kind="stable")]

    def attempt(ended: int) -> Placement | None:
        gone = np.zeros(len(holdings.live), dtype=bool)
        gone[order[:ended]] = True
        with holdings.without(state, gone):
            placed = placer.place(job, barred)
        return None if isinstance(placed, PlacementRefusal) else placed

    # Most holes open within a few ends: steps of growing length, then back by halves.
    found: tuple[Placement, int] | None = None
    below, step = fewest(state, holdings, job, order, nodes), 1
    while found is None and below < len(order):
        ended = min(below + step, len(order))
        placement = attempt(ended)
        if placement is None:
            below, step = ended, step * 4
        else:
            found = (placement, ended)
    while found is not None and found[1] - below > 1:
        middle = (below + found[1]) // 2
        placement = attempt(middle)
        if placement is None:
            below = middle
        else:
            found = (placement, middle)
    if found is None:
        return None
    chosen, ended = found
    last = order[:ended]
    stated = bool(np.isfinite(holdings.ends[last]).all())
    return Reservation(chosen, float(holdings.expected[last[-1]]), stated)


def on_nodes(holdings: Allocations, nodes: Flags) -> Flags:
    """The slots of the jobs that hold something on these nodes."""
    rows = holdings.rows[:, : holdings.used]
    slots = rows[SLOT][nodes[rows[NODE]]]
    found = np.zeros(len(holdings.live), dtype=bool)
    found[slots[slots >= 0]] = True
    return found


def fewest(
    state: ClusterState, holdings: Allocations, job: GangJob, order: Ints, nodes: Flags
) -> int:
    """How many of these jobs can end without there being cards enough on these nodes."""
    free = int(cards.count(state.free[nodes]).sum())
    missing = job.cards - free
    if missing <= 0:
        return 0
    return int(np.searchsorted(np.cumsum(holdings.sizes[order]), missing))
