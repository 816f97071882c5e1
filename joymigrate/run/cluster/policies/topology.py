"""`topology`: the tightest ring, module and domain first, then the fullest node. The default.

Inside one kind the order of nodes is the one of the kind's own scheduler (tightness of the chosen
ring, free cards, healthy cards); among equals the leaf with the fewest free cards wins, so that
whole leaves stay free for gangs.

Where the kind has no rings or modules, a job of one pod whose run time is stated or predicted goes
first to the nodes that it keeps in use for the least of that time (in quarters) beyond the last
job there, and only then to the fullest: whole nodes come free more often. That is the principle of
lifetime-aware packing of virtual machines ("LAVA: Lifetime-Aware VM Allocation with Learned
Distributions and Adaptation to Mispredictions", arXiv 2412.09840); the quarters are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.cards import count
from joymigrate.run.cluster.policies import Policy, Typical
from joymigrate.run.cluster.policies._shares import tightest

if TYPE_CHECKING:
    from joymigrate.run.cluster.policies import Costs
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints

Ends = NDArray[np.float64]
LEAF_CAP = 1 << 12  # a leaf with more free cards than this counts as this
PARTS = 4  # of a run time
PART_COST = 16  # the free cards of the largest node; all parts are less than a sick card


def rank(state: ClusterState, shape: TaskShape, free: Ints) -> Costs:
    """Tightness of the choice × leaf tie-break."""
    pool = shape.pool
    if not (shape.task.cards or shape.task.milli):
        return count(free)  # work without cards stays away from free ones
    cost = shape.choice.cost[free]
    if pool.kind.health_weight:
        cost = cost + pool.kind.health_weight * state.broken[pool.index]
    if shape.task.pods == 1 and pool.kind.rule == "count" and state.run is not None:
        cost = cost + PART_COST * kept_in_use(*state.run, state.until[pool.index])
    if pool.leaves < 2:
        return cost
    # Where jobs are thought away it lags behind what a gang's own tasks take.
    leaf_free = np.maximum(state.leaf_free[state.leaf[pool.index] + 1], 0)
    return cost + leaf_free / LEAF_CAP


def kept_in_use(begin: float, end: float, until: Ends) -> Ints:
    """In how many quarters of its run time, begun ones counted whole, a job is alone on each node.

    `begin` and `end` are the job's, `until` the end of the last other job per node, in seconds.
    """
    alone = end - np.clip(until, begin, end)
    return np.ceil(alone * PARTS / max(end - begin, 1.0) - 1e-9).astype(np.int64)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy; it needs no demand."""
    return Policy("topology", rank, tightest)
