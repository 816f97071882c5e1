"""Which waiting requests run next as one batch. Pure: no clock, no thread.

Requests run in the order they came; the batch is a prefix of the queue. One more joins when
1. merging is no dearer than running it after the others: cost(batch + r) ≤ cost(batch) + cost(r),
2. everybody in the batch who would meet the deadline alone still meets it,
3. the batch stays below the limit of one batch.
By 1 the whole queue ends no later than one by one; by 2 so does each member as far as its deadline
asks. So (with exact predictions, on one lane) nobody misses a deadline that running alone meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joymigrate.run.serve.ranking.cost import BatchSizes


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue, as far as the choice needs it."""

    sizes: BatchSizes
    deadline: float


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch may be. `seconds` is predicted; a request beyond it passes alone."""

    seconds: float = 0.025
    requests: int = 128
    candidates: int = 16384


def choose(
    queue: Sequence[Waiting],
    now: float,
    predict: Callable[[BatchSizes], float],
    limits: BatchLimits,
    fits: Callable[[int], bool] = lambda place: True,
    margin: float = 1.0,
) -> int:
    """How many requests of the queue's front run now as one batch, at least 1.

    `fits(place)` says whether the request at a place may be merged with the first one. `margin`
    (≥ 1) stretches predictions where deadlines are checked.
    """
    sizes = queue[0].sizes
    cost = predict(sizes)
    tightest = latest_end(queue[0], now, cost)
    if cost > limits.seconds:
        return 1
    for place in range(1, min(len(queue), limits.requests)):
        if not fits(place):
            return place
        alone = predict(queue[place].sizes)
        joined = sizes.join(queue[place].sizes)
        together = predict(joined)
        due = min(tightest, latest_end(queue[place], now, alone))
        if together > cost + alone or together > limits.seconds:
            return place
        if joined.candidates > limits.candidates or now + together * margin > due:
            return place
        sizes, cost, tightest = joined, together, due
    return min(len(queue), limits.requests)


def latest_end(one: Waiting, now: float, alone: float) -> float:
    """Until when a batch with this request must end: its deadline, if it can still be met."""
    return one.deadline if now + alone <= one.deadline else float("inf")
