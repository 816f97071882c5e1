"""`gradient`: fragmentation gradient descent exactly as published, the yardstick.

Each node scores int(100·sigmoid(−ΔF/1000)), and the first of the best wins. The rounding matters:
it makes small differences ties, and ties go to low nodes, so that high nodes stay whole (an exact
minimum allocates two points less on the published trace).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joymigrate.run.cluster.cards import IMPOSSIBLE
from joymigrate.run.cluster.policies import Policy, Typical
from joymigrate.run.cluster.policies._gradient import Floats, Fragments, Gradient
from joymigrate.run.cluster.policies._shares import tightest

if TYPE_CHECKING:
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints

STEPS = 100  # values that a score can take


class GradientDescent:
    """Costs by a gradient of lost capacity, rounded to `steps`; without one, by tightness alone."""

    def __init__(self, gradient: Gradient | None, steps: int = STEPS) -> None:
        self.gradient, self.steps = gradient, steps

    def costs(self, state: ClusterState, shape: TaskShape, free: Ints) -> Ints:
        """Cost of each node of the pool."""
        if self.gradient is None:
            return shape.choice.cost[free]
        cost = round_steps(self.gradient.of(state, shape).cost, self.steps)
        # Cards that are held for somebody are in the remembered cost but not in `free`.
        return np.where(shape.choice.fits[free] > 0, cost, IMPOSSIBLE)

    def share(self, state: ClusterState, shape: TaskShape, hold: Ints | None) -> tuple[int, int]:
        """The card whose use loses the least."""
        if self.gradient is None or hold is not None:
            return tightest(state, shape, hold)
        known = self.gradient.of(state, shape)
        cost = round_steps(known.cost, self.steps)
        position = int(cost.argmin())
        if cost[position] >= IMPOSSIBLE:
            return -1, -1
        return int(shape.pool.nodes[position]), int(known.card[position])


def round_steps(delta: Floats, steps: int) -> Ints:
    """steps − int(steps·sigmoid(−ΔF/1000)); IMPOSSIBLE where ΔF is infinite."""
    finite = np.isfinite(delta)
    score = np.floor(steps / (1 + np.exp(np.clip(np.where(finite, delta, 0), -1e5, 1e5) / 1000)))
    return np.where(finite, steps - score, IMPOSSIBLE).astype(np.int64)


def make(demand: Sequence[Typical]) -> Policy:
    """The policy for this demand; without one it ranks by tightness alone."""
    descent = GradientDescent(Gradient(Fragments(demand)) if demand else None)
    return Policy("gradient", descent.costs, descent.share, sequential=True)
