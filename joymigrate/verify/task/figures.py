"""What is counted while the pairs stream past: sums only, no sample is kept."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from joymigrate.stats import Interval, quantile
from joymigrate.verify.task.clusters import Clusters

RESAMPLES = 2000


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared deviations (Welford 1962), updated value by value."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.n += 1
        step = value - self.mean
        self.mean += step / self.n
        self.squares += step * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of the sample (n - 1)."""
        return self.squares / (self.n - 1) if self.n > 1 else 0.0


@dataclass(slots=True)
class Paired:
    """How right both sides were, pair by pair.

    `lost` pairs are better on the baseline, `gained` ones on the target; while every value is 0
    or 1 (`binary`) these are all that matters.
    """

    baseline: Moments = field(default_factory=Moments)
    target: Moments = field(default_factory=Moments)
    difference: Moments = field(default_factory=Moments)
    lost: int = 0
    gained: int = 0
    binary: bool = True
    low: float = math.inf
    high: float = -math.inf
    clusters: Clusters = field(default_factory=Clusters)

    def add(self, baseline: float, target: float, cluster: str) -> None:
        """Count one pair of a cluster."""
        self.clusters.add(cluster, target - baseline)
        self.baseline.add(baseline)
        self.target.add(target)
        self.difference.add(target - baseline)
        self.lost += target < baseline
        self.gained += target > baseline
        self.binary = self.binary and baseline in (0, 1) and target in (0, 1)
        self.low = min(self.low, baseline, target)
        self.high = max(self.high, baseline, target)

    @property
    def n(self) -> int:
        """Number of pairs."""
        return self.difference.n

    @property
    def spread(self) -> float:
        """How far a score can be from another: of right and wrong 1, also where all are alike."""
        alike = self.low == self.high
        return 1.0 if self.share_scale and (self.binary or alike) else self.high - self.low

    @property
    def share_scale(self) -> bool:
        """Whether values are shares, so that a margin in percentage points has a meaning."""
        return self.n > 0 and self.low >= 0 and self.high <= 1


@dataclass(slots=True)
class Agreement:
    """How often, or how far, the target said what the baseline said."""

    moments: Moments = field(default_factory=Moments)
    equal: int = 0
    prefix: Moments = field(default_factory=Moments)  # common tokens before the first difference
    clusters: Clusters = field(default_factory=Clusters)

    def add(self, value: float, cluster: str) -> None:
        """Count one pair's agreement, 0 to 1."""
        self.clusters.add(cluster, value)
        self.moments.add(value)
        self.equal += value == 1

    @property
    def n(self) -> int:
        """Number of pairs."""
        return self.moments.n


@dataclass(slots=True)
class LabelCounts:
    """Counts of (baseline, target, reference) labels: what macro-F1 is made of."""

    triples: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    clusters: dict[str, Counter[tuple[str, str, str]]] = field(default_factory=dict)

    def add(self, baseline: Any, target: Any, reference: Any, cluster: str) -> None:
        """Count one pair of labels and the right one."""
        key = repr(baseline), repr(target), repr(reference)
        self.triples[key] += 1
        self.clusters.setdefault(cluster, Counter())[key] += 1

    @property
    def classes(self) -> list[str]:
        """Labels of the reference: a label that only predictions have has no F1 of its own."""
        return sorted({reference for _, _, reference in self.triples})

    def macro_f1(self) -> tuple[float, float, Interval]:
        """Macro-F1 of both sides, and the difference with a 90 % bootstrap interval over pairs;
        over clusters where some have more than one pair."""
        import numpy as np

        keys, counts = list(self.triples), np.array(list(self.triples.values()), dtype=np.int64)
        place = {name: index for index, name in enumerate(self.classes)}
        codes = np.array([[place.get(label, -1) for label in key] for key in keys])
        n = int(counts.sum())
        random = np.random.default_rng(0)
        if len(self.clusters) == n:
            draws = random.multinomial(n, counts / n, size=RESAMPLES)
        else:  # few kinds of clusters, each with its triples
            kinds = Counter(frozenset(one.items()) for one in self.clusters.values())
            groups, column = len(self.clusters), {key: i for i, key in enumerate(keys)}
            held = np.zeros((len(kinds), len(keys)), dtype=np.int64)
            for place_of, kind in enumerate(kinds):
                for key, number in kind:
                    held[place_of, column[key]] = number
            shares = np.array(list(kinds.values())) / groups
            draws = random.multinomial(groups, shares, size=RESAMPLES) @ held

        def f1(side: int, weights: Any) -> Any:
            """(resamples,) macro-F1 of one side under (resamples, triples) weights."""
            total: Any = 0.0
            for index in range(len(place)):
                said, true = codes[:, side] == index, codes[:, 2] == index
                hits = weights[:, said & true].sum(axis=1)
                both = weights[:, said].sum(axis=1) + weights[:, true].sum(axis=1)
                total = total + np.where(both > 0, 2 * hits / np.maximum(both, 1), 0.0)
            return total / max(1, len(place))

        point = counts[None, :]
        base, target = float(f1(0, point)[0]), float(f1(1, point)[0])
        differences = sorted((f1(1, draws) - f1(0, draws)).tolist())
        ends = quantile(differences, 0.05), quantile(differences, 0.95)
        return base, target, Interval(target - base, *ends)


@dataclass(slots=True)
class TaskView:
    """Everything that one view (raw, or normalised) of one set of pairs amounts to.

    `worst` counts the same pairs and, as wrong, what the target did not answer at all.
    """

    paired: Paired = field(default_factory=Paired)
    worst: Paired = field(default_factory=Paired)
    agreement: Agreement = field(default_factory=Agreement)
    labels: LabelCounts = field(default_factory=LabelCounts)
    noise: Agreement = field(default_factory=Agreement)  # baseline against its second run
    against_noise: Paired = field(default_factory=Paired)  # agreement: second run, target
