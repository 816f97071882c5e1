"""`spread`: the emptiest node first, domains unknown. What a plain scheduler does; the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joymigrate.run.cluster.cards import IMPOSSIBLE, count
from joymigrate.run.cluster.policies import Policy, Typical
from joymigrate.run.cluster.policies._shares import emptiest

if TYPE_CHECKING:
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints


class Spread:
    """Most free cards first; every pod of a gang looks again."""

    name = "spread"
    local = False
    sequential = True

    def costs(self, state: ClusterState, shape: TaskShape, free: Ints) -> Ints:
        possible = shape.choice.fits[free] > 0
        return np.where(possible, 16 - count(free), IMPOSSIBLE)

    def share(self, state: ClusterState, shape: TaskShape, hold: Ints | None) -> tuple[int, int]:
        return emptiest(state, shape, hold)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy; it needs no demand."""
    return Spread()
