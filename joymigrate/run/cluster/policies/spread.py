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


def rank(state: ClusterState, shape: TaskShape, free: Ints) -> Ints:
    """Most free cards first; every pod of a gang looks again."""
    return np.where(shape.choice.fits[free] > 0, 16 - count(free), IMPOSSIBLE)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy; it needs no demand."""
    return Policy("spread", rank, emptiest, local=False, sequential=True)
