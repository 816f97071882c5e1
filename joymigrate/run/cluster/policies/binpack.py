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


def rank(state: ClusterState, shape: TaskShape, free: Ints) -> Ints:
    """Fewest free cards first."""
    return np.where(shape.choice.fits[free] > 0, count(free), IMPOSSIBLE)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy; it needs no demand."""
    return Policy("binpack", rank, tightest, local=False)
