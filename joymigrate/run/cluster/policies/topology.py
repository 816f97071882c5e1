"""`topology`: the tightest ring, module and domain first, then the fullest node. The default.

Inside one kind the order of nodes is the one of the kind's own scheduler (tightness of the chosen
ring, free cards, healthy cards); among equals the leaf with the fewest free cards wins, so that
whole leaves stay free for gangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joymigrate.run.cluster.cards import count
from joymigrate.run.cluster.policies import Policy, Typical
from joymigrate.run.cluster.policies._shares import tightest

if TYPE_CHECKING:
    from joymigrate.run.cluster.policies import Costs
    from joymigrate.run.cluster.shape import Shape
    from joymigrate.run.cluster.state import Ints, State

LEAF_CAP = 1 << 12  # a leaf with more free cards than this counts as this


class TopologyPolicy:
    """Tightness of the choice × leaf tie-break; gangs go into the tightest domain."""

    name = "topology"
    local = True
    sequential = False

    def costs(self, state: State, shape: Shape, free: Ints) -> Costs:
        pool = shape.pool
        if not (shape.task.cards or shape.task.milli):
            return count(free)  # work without cards stays away from free ones
        cost = shape.choice.cost[free]
        if pool.kind.health_weight:
            cost = cost + pool.kind.health_weight * state.broken[pool.index]
        if pool.leaves < 2:
            return cost
        # Where jobs are thought away it lags behind what a gang's own tasks take.
        leaf_free = np.maximum(state.leaf_free[state.leaf[pool.index] + 1], 0)
        return cost + leaf_free / LEAF_CAP

    def share(self, state: State, shape: Shape, hold: Ints | None) -> tuple[int, int]:
        return tightest(state, shape, hold)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy; it needs no demand."""
    return TopologyPolicy()
