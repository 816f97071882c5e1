"""Samples of one prompt are no independent samples: tests by cluster.

Sources: R. A. Fisher, The Design of Experiments (1935), section 21, for the sign-flip test (each
cluster's difference could as well have the other sign); J. N. K. Rao and A. J. Scott, Biometrics 48
(1992) 577-585 for shares (counts divided by the design effect); A. B. Owen, Biometrika 75 (1988)
237-249 for the weights under a hypothesis on the mean, with the worst possible value among them,
which makes the test Tango's where all values are 0 and 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joymigrate import stats

MOST_CLUSTERS = 2_000_000
MOST_VALUES = 200_000  # different sums of clusters that the score test keeps
ENUMERATED = 16  # clusters that differ: all signs are tried
FLIPS = 20_000
MANY = 200  # clusters that differ: the normal distribution serves


@dataclass(slots=True)
class Clusters:
    """Sums by cluster: number of samples, and sum of their differences."""

    sums: dict[str, tuple[int, float]] = field(default_factory=dict)
    full: bool = False

    def add(self, cluster: str, value: float) -> None:
        """Count one difference."""
        known = self.sums.get(cluster)
        if known is None and len(self.sums) >= MOST_CLUSTERS:
            self.full = True
            return
        n, total = known or (0, 0.0)
        self.sums[cluster] = n + 1, total + value

    @property
    def count(self) -> int:
        """Number of clusters."""
        return len(self.sums)

    @property
    def clustered(self) -> bool:
        """Whether some cluster has more than one sample."""
        return any(n > 1 for n, _ in self.sums.values())

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(n for n, _ in self.sums.values())

    def residuals(self, mean: float) -> list[float]:
        """Each cluster's sum less what `mean` would make of it, in samples of a mean cluster."""
        size = self.samples / max(1, self.count)
        return [(total - mean * n) / size for n, total in self.sums.values()]

    def variance(self, mean: float) -> float:
        """Of one cluster's mean (G - 1), robust: whatever hangs together inside of it."""
        if self.count < 2:
            return math.inf
        return sum(r * r for r in self.residuals(mean)) / (self.count - 1)

    def design_effect(self, mean: float, variance: float) -> float:
        """How many samples count as one, at least 1. `variance` is that of single samples."""
        if variance <= 0 or self.count < 2:
            return self.samples / max(1, self.count)
        effect = self.variance(mean) / self.count / (variance / self.samples)
        return min(max(effect, 1.0), self.samples / self.count * max(1.0, self.unbalance()))

    def unbalance(self) -> float:
        """The largest cluster in mean clusters."""
        return max((n for n, _ in self.sums.values()), default=1) * self.count / self.samples


def sign_flip(sums: Sequence[float]) -> float:
    """Two-sided p-value that each cluster's sum could as well have the other sign."""
    values = [v for v in sums if v != 0]
    if not values:
        return 1.0
    observed = abs(math.fsum(values))
    if len(values) > MANY:
        return 2 * (1 - stats.NORMAL.cdf(observed / math.sqrt(math.fsum(v * v for v in values))))
    import numpy as np

    array = np.asarray(values)
    near = observed * (1 - 1e-9)
    if len(values) <= ENUMERATED:
        codes = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        return float((np.abs((codes * 2 - 1) @ array) >= near).mean())
    flips = np.random.default_rng(0).integers(0, 2, (FLIPS, len(values))) * 2 - 1
    return float(((np.abs(flips @ array) >= near).sum() + 1) / (FLIPS + 1))


def score_p(values: Mapping[float, int], least: float) -> float:
    """One-sided p-value that the mean of these values is 0 or less, though it looks larger.

    `values` counts how often each occurred; `least` is the smallest that was possible.
    """
    n = sum(values.values())
    if not n or least >= 0:
        return 1.0
    mean = math.fsum(v * c for v, c in values.items()) / n
    if mean <= 0:
        return 1.0
    variance = null_variance(values, least)
    if variance <= 0:
        return 1.0
    return 1 - stats.NORMAL.cdf(mean * math.sqrt(n / variance))


def null_variance(values: Mapping[float, int], least: float) -> float:
    """The variance of values whose mean is above 0 under the hypothesis that it is 0: weights of
    largest likelihood whose mean is 0, with `least` (below 0) among the values (Owen 1988). It
    depends on the shares of the values alone, not on their number."""
    n = sum(values.values())

    def pull(scale: float) -> float:
        return math.fsum(c * v / (n + scale * v) for v, c in values.items())

    edge = n / -least
    if pull(edge * (1 - 1e-12)) > 0:  # the worst value has a weight of its own
        scale = edge
        known = math.fsum(c / (n + scale * v) for v, c in values.items() if n + scale * v > 0)
        variance = max(0.0, 1 - known) * least * least
    else:
        scale, variance = stats.bisect(pull, 0.0, edge * (1 - 1e-12)), 0.0
    return variance + math.fsum(
        c * v * v / (n + scale * v) for v, c in values.items() if n + scale * v > 0
    )


def needed_clusters(
    clusters: Clusters, margin: float, spread: float, alpha: float, power: float
) -> int | None:
    """Clusters like these with which `worse_p` is below `alpha` with this power, both sides being
    equally good; None where that is not known, or no number would do."""
    if margin <= 0 or clusters.count < 2:
        return None
    size = clusters.samples / clusters.count
    mean = math.fsum(total for _, total in clusters.sums.values()) / clusters.samples
    values = Counter(
        round((total - mean * n + margin * n) / size, 12) for n, total in clusters.sums.values()
    )
    least, spare = (margin - spread) * clusters.unbalance(), clusters.variance(mean)
    null = spare
    if least < 0 and len(values) <= MOST_VALUES:
        null = max(spare, null_variance(values, least))
    sure, able = stats.NORMAL.inv_cdf(1 - alpha), stats.NORMAL.inv_cdf(power)
    wanted = (sure * math.sqrt(null) + able * math.sqrt(spare)) / margin
    return max(2, math.ceil(wanted * wanted))


def worse_p(clusters: Clusters, margin: float, sign: int, spread: float) -> float:
    """p-value that the target is worse by `margin` or more. `spread`: of all scores."""
    size = clusters.samples / max(1, clusters.count)
    values = Counter(
        round((sign * total + margin * n) / size, 12) for n, total in clusters.sums.values()
    )
    least = (margin - spread) * clusters.unbalance()
    if len(values) > MOST_VALUES:
        mean = math.fsum(v * c for v, c in values.items()) / clusters.count
        square = math.fsum(c * (v - mean) ** 2 for v, c in values.items()) / (clusters.count - 1)
        return stats.t_tail_of(clusters.count, mean, square)
    return score_p(values, least)
