"""What a batch costs, predicted: fitted from measurements at the start, refined while serving.

seconds ≈ w · (1, C, U·L + T, C·L, U·L²) with weights that are not negative; C candidates, U users,
L the padded length, T tokens of jagged sequences. Old measurements fade (`KEEP` per observation).
"""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

KEEP = 0.99  # a measurement counts a half after 69 others
REFIT = 16  # observations between two fits
ERRORS = 256  # of the newest predictions, for the margin and the metrics
MAX_MARGIN = 4.0


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """How large a request or a batch is."""

    candidates: int
    users: int = 1
    length: int = 0
    tokens: int = 0

    def join(self, other: BatchSizes) -> BatchSizes:
        """Both as one batch: the padded length is the longer one."""
        return BatchSizes(
            self.candidates + other.candidates,
            self.users + other.users,
            max(self.length, other.length),
            self.tokens + other.tokens,
        )


Floats = np.ndarray[Any, np.dtype[np.float64]]


def features(sizes: BatchSizes) -> tuple[float, ...]:
    """What the cost is linear in."""
    c, u, length, t = sizes.candidates, sizes.users, sizes.length, sizes.tokens
    return (1.0, c, u * length + t, c * length, u * length * length)


class CostModel:
    """Predicts seconds. Before the first observation it knows nothing and predicts 0."""

    def __init__(self) -> None:
        size = len(features(BatchSizes(1)))
        self.gram, self.moment = np.zeros((size, size)), np.zeros(size)
        self.weights: list[float] = [0.0] * size
        self.observations = 0
        self.margin = 1.5  # 95 % quantile of measured / predicted, at least 1
        self.errors: deque[float] = deque(maxlen=ERRORS)  # measured / predicted

    def predict(self, sizes: BatchSizes) -> float:
        """Expected seconds of a batch."""
        weights = self.weights  # asked hundreds of times per batch: plain numbers are faster
        found: float = sum(map(operator.mul, features(sizes), weights))
        return found

    @property
    def error(self) -> float:
        """Median relative error of the newest predictions."""
        errors = list(self.errors)
        return float(np.median(np.abs(np.array(errors) - 1))) if errors else 0.0

    def observe(self, sizes: BatchSizes, seconds: float) -> None:
        """Learn from a measured batch. Relative errors count, so that small batches do, too."""
        expected = self.predict(sizes)
        if expected > 0:
            self.errors.append(seconds / expected)
        row = np.array(features(sizes)) / seconds
        self.gram = self.gram * KEEP + np.outer(row, row)
        self.moment = self.moment * KEEP + row
        self.observations += 1
        if self.observations < 2 * REFIT or self.observations % REFIT == 0:
            self.weights = [float(w) for w in nonnegative(self.gram, self.moment)]
        if len(self.errors) >= REFIT and self.observations % REFIT == 0:
            self.margin = float(np.clip(np.quantile(self.errors, 0.95), 1.0, MAX_MARGIN))


def nonnegative(gram: Floats, moment: Floats, rounds: int = 200) -> Floats:
    """min ½ wᵀGw - mᵀw with w ≥ 0, by coordinate descent (Franc et al., 2005)."""
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    normal = gram / np.outer(scale, scale) + 1e-9 * np.eye(len(gram))
    target = moment / scale
    weights = np.zeros(len(gram))
    slope = -target
    for _ in range(rounds):
        before = weights.copy()
        for place in range(len(weights)):
            value = max(0.0, weights[place] - slope[place] / normal[place, place])
            slope = slope + (value - weights[place]) * normal[:, place]
            weights[place] = value
        if np.abs(weights - before).max() <= 1e-12 * max(1e-300, weights.max()):
            break
    return weights / scale
