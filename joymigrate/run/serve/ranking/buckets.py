"""Which sizes to capture: the buckets that waste least on the traffic that was seen.

Where graphs are captured, every size is padded to a bucket. With sizes s_1 < … < s_n that came
c_1 … c_n times, bucket b holds the sizes up to it and wastes Σ c_i (b - s_i). The least waste with
at most K buckets is found exactly by dynamic programming over "the last bucket ends at s_j":
W(k, j) = min over i < j of W(k-1, i) + cost(i+1 … j). A bound on memory bounds the sum of buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

Cost = Callable[[int, int], float]
Point = tuple[float, int, tuple[int, ...]]  # waste, memory, bucket ends
DRIFT = 1.25  # new buckets when the present ones waste a quarter more than the best would
FRESH = 1000  # requests between two looks
FADE = 0.5  # what old traffic counts after each look


@dataclass(frozen=True, slots=True)
class Buckets:
    """Chosen sizes, ascending, and what they waste of all padded elements (0 to 1)."""

    sizes: tuple[int, ...]
    waste: float

    def holding(self, size: int) -> int | None:
        """The smallest bucket for a size; None: it is larger than all of them."""
        return next((bucket for bucket in self.sizes if bucket >= size), None)


def choose(histogram: Mapping[int, float], budget: int, memory: int | None = None) -> Buckets:
    """The best buckets: at most `budget`, their sum at most `memory`.

    The largest size always has one; where `memory` is too small even for that, the largest sizes
    are left out (they run without a captured graph).
    """
    seen = sorted((size, count) for size, count in histogram.items() if count > 0 and size > 0)
    while memory is not None and seen and seen[-1][0] > memory:
        seen.pop()
    if not seen or budget < 1:
        return Buckets((), 0.0)
    sizes = [size for size, _ in seen]
    counts = [0.0, *accumulate(count for _, count in seen)]
    weights = [0.0, *accumulate(size * count for size, count in seen)]

    def cost(first: int, last: int) -> float:
        """Waste of the sizes first … last (from 0) in the bucket of the last."""
        return sizes[last] * (counts[last + 1] - counts[first]) - (
            weights[last + 1] - weights[first]
        )

    found = (
        free_of_memory(sizes, cost, budget)
        if memory is None
        else bound_by_memory(sizes, cost, budget, memory)
    )
    chosen = tuple(sizes[place] for place in found)
    lost = waste_of(histogram, chosen)
    return Buckets(chosen, lost)


def free_of_memory(sizes: list[int], cost: Cost, budget: int) -> list[int]:
    """Places of the best bucket ends, by the recurrence above."""
    count = len(sizes)
    best = [cost(0, last) for last in range(count)]
    came: list[list[int]] = [[-1] * count]
    for _ in range(1, min(budget, count)):
        row, origin = list(best), [-2] * count  # -2: no more buckets than before
        for last in range(count):
            for before in range(last):
                value = best[before] + cost(before + 1, last)
                if value < row[last]:
                    row[last], origin[last] = value, before
        best = row
        came.append(origin)
    return walk_back(came, count - 1)


def walk_back(came: list[list[int]], last: int) -> list[int]:
    """The chain of bucket ends that leads to the last size."""
    ends = []
    level, place = len(came) - 1, last
    while place >= 0:
        if came[level][place] == -2:
            level -= 1
            continue
        ends.append(place)
        place = came[level][place]
        level -= 1
    return ends[::-1]


def bound_by_memory(sizes: list[int], cost: Cost, budget: int, memory: int) -> list[int]:
    """The best chain whose sizes sum to at most `memory`: all Pareto points (waste, memory)."""
    layers: list[list[list[Point]]] = [
        [[(cost(0, last), sizes[last], (last,))] for last in range(len(sizes))]
    ]
    for _ in range(1, min(budget, len(sizes))):
        grown: list[list[Point]] = []
        for last in range(len(sizes)):
            rows = [
                (waste + cost(before + 1, last), used + sizes[last], (*ends, last))
                for before in range(last)
                for waste, used, ends in layers[-1][before]
                if used + sizes[last] <= memory
            ]
            grown.append(keep_undominated(rows))
        layers.append(grown)
    final = [point for layer in layers for point in layer[-1] if point[1] <= memory]
    return list(min(final)[2])


def keep_undominated(rows: list[Point]) -> list[Point]:
    """Points that no other beats in waste and memory."""
    kept: list[Point] = []
    for row in sorted(rows):
        if not kept or row[1] < kept[-1][1]:
            kept.append(row)
    return kept


def waste_of(histogram: Mapping[int, float], sizes: tuple[int, ...]) -> float:
    """Share of padding in all elements of the sizes that have a bucket."""
    lost = held = 0.0
    for size, count in histogram.items():
        bucket = next((one for one in sizes if one >= size), None)
        if bucket is not None:
            lost, held = lost + count * (bucket - size), held + count * bucket
    return lost / held if held else 0.0


class Traffic:
    """Sizes as they come; says when other buckets would waste clearly less."""

    def __init__(self, budget: int = 8, memory: int | None = None) -> None:
        self.budget, self.memory = budget, memory
        self.histogram: Counter[int] = Counter()
        self.weights: dict[int, float] = {}
        self.present = Buckets((), 0.0)
        self.looks = 0

    def add(self, size: int) -> Buckets | None:
        """Count a size; new buckets when traffic has drifted from the present ones."""
        self.histogram[size] += 1
        if self.histogram.total() < FRESH:
            return None
        faded = {one: count * FADE for one, count in self.weights.items() if count > 0.01}
        for one, count in self.histogram.items():
            faded[one] = faded.get(one, 0.0) + count
        self.weights, self.histogram = faded, Counter()
        self.looks += 1
        best = choose(self.weights, self.budget, self.memory)
        now = waste_of(self.weights, self.present.sizes)
        uncovered = any(self.present.holding(one) is None for one in self.weights)
        if self.present.sizes and not uncovered and now <= max(best.waste * DRIFT, 0.01):
            return None
        self.present = best
        return best
