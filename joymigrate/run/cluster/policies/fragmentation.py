"""`fragmentation`: the node where the pod leaves the least capacity that work to come cannot use.

The published gradient (see `gradient`) asks whether one more typical pod would still run. That is
short-sighted twice: a node with CPU for one pod counts as open although its other cards are lost,
and nothing pays for using up the CPU that the node's free cards will need. So two terms are added:

    F' = F + 0.1 · Σ w_i · (free − what as many pods of kind i as fit would use) + 0.3 · starved

where w_i is the share of request i in the demand for cards, and `starved` the free cards beyond
what the node's free CPU can feed at the demand's mean CPU per card. Scores have 200 steps instead
of 100. Allocation on the published experiment: docs/how-to/cluster.md, Policies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joymigrate.run.cluster.policies import Policy, Typical
from joymigrate.run.cluster.policies._gradient import WHOLE, Floats, Fragments, Gradient
from joymigrate.run.cluster.policies.gradient import GradientDescent
from joymigrate.run.cluster.state import Ints

FILLED = 0.1  # weight of what a node could not use if it were filled with one kind of pod
STARVED = 0.3  # weight of cards beyond the node's CPU
STEPS = 200


class Farsighted(Fragments):
    """F plus what is lost when a node is filled, and what its CPU cannot feed."""

    def __init__(self, demand: Sequence[Typical]) -> None:
        super().__init__(demand)
        self.uses = np.array([t.milli or WHOLE * t.cards for t in demand], dtype=np.int64)
        wanted = self.share * self.uses
        self.weight = wanted / max(float(wanted.sum()), 1e-12)
        cpu = float((self.share * self.cpu * (self.uses > 0)).sum())
        self.cpu_per_milli = cpu / max(float(wanted.sum()), 1e-12)

    def of(self, cpu: Ints, left: Ints) -> Floats:
        """F' of each state, in thousandths of a card."""
        lost: Floats = super().of(cpu, left) + FILLED * self.unfilled(cpu, left)
        if not self.cpu_per_milli:
            return lost
        starved: Floats = np.maximum(0, left.sum(axis=1) - cpu / self.cpu_per_milli)
        return lost + STARVED * starved

    def unfilled(self, cpu: Ints, left: Ints) -> Floats:
        """Mean of what stays free when the node takes as many pods of one request as it can."""
        shares = (left[:, None, :] // self.asks[None, :, None]).sum(axis=2)[:, self.ask_of]
        pods = np.where(self.uses < WHOLE, shares, shares // np.maximum(self.cards, 1))
        fed = cpu[:, None] // np.maximum(self.cpu, 1)
        pods = np.where(self.cpu > 0, np.minimum(pods, fed), pods)
        used = np.where(self.plain, 0, pods * self.uses)
        lost: Floats = (left.sum(axis=1)[:, None] - used) @ self.weight
        return lost


def make(demand: Sequence[Typical]) -> Policy:
    """The policy for this demand; without one it ranks by tightness alone."""
    descent = GradientDescent(Gradient(Farsighted(demand)) if demand else None, STEPS)
    return Policy("fragmentation", descent.costs, descent.share, sequential=True)
