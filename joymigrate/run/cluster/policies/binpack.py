"""`binpack`: the fullest node that fits, domains unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joymigrate.run.cluster.cards import IMPOSSIBLE, count
from joymigrate.run.cluster.policies import Policy, Typical
from joymigrate.run.cluster.policies._shares import tightest

if TYPE_CHECKING:
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints


class Binpack:
    """Fewest free cards first."""

    name = "binpack"
    local = False
    sequential = False

    def costs(self, state: ClusterState, shape: TaskShape, free: Ints) -> Ints:
        possible = shape.choice.fits[free] > 0
        return np.where(possible, count(free), IMPOSSIBLE)

    def share(self, state: ClusterState, shape: TaskShape, hold: Ints | None) -> tuple[int, int]:
        return tightest(state, shape, hold)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy; it needs no demand."""
    return Binpack()
