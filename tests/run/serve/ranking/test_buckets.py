"""Buckets: as good as trying everything, within their budget, and new ones when traffic drifts."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from joymigrate.run.serve.ranking.buckets import FRESH, Traffic, choose, waste_of


def lost(histogram: dict[int, float], sizes: tuple[int, ...]) -> float:
    return sum(
        count * (min(b for b in sizes if b >= size) - size) for size, count in histogram.items()
    )


def brute_force(histogram: dict[int, float], budget: int, memory: int | None) -> float:
    largest = max(histogram)
    others = [size for size in histogram if size != largest]
    return min(
        lost(histogram, (*some, largest))
        for many in range(budget)
        for some in combinations(others, min(many, len(others)))
        if memory is None or sum(some) + largest <= memory
    )


@pytest.mark.parametrize("bounded", [False, True])
def test_the_waste_is_that_of_brute_force(bounded: bool) -> None:
    draw = random.Random(3)
    for _ in range(150):
        histogram = {size: float(draw.randint(1, 50))
                     for size in draw.sample(range(1, 60), draw.randint(1, 9))}  # fmt: skip
        budget = draw.randint(1, 5)
        memory = max(histogram) + draw.randint(0, 80) if bounded else None
        found = choose(histogram, budget, memory)
        assert len(found.sizes) <= budget
        assert memory is None or sum(found.sizes) <= memory
        assert lost(histogram, found.sizes) == pytest.approx(brute_force(histogram, budget, memory))


def test_eight_buckets_of_zipf_lengths_are_the_best_eight() -> None:
    # A tenth is out of reach beyond lengths of about 20: the best eight waste more (docs).
    for longest, limit in ((16, 0.10), (200, 0.25)):
        histogram = {size: size**-1.2 for size in range(1, longest + 1)}
        found = choose(histogram, 8)
        assert len(found.sizes) == 8
        assert found.waste <= limit
        assert found.waste == pytest.approx(waste_of(histogram, found.sizes))


def test_a_size_beyond_the_memory_has_no_bucket() -> None:
    found = choose({10: 5.0, 1000: 1.0}, 4, memory=100)
    assert found.sizes == (10,)
    assert found.holding(1000) is None


def test_no_traffic_has_no_buckets() -> None:
    assert choose({}, 8).sizes == ()
    assert choose({0: 4.0}, 8).sizes == ()


def test_other_traffic_gets_other_buckets_once() -> None:
    traffic = Traffic(budget=2)
    first = [traffic.add(size) for size in [10, 20] * (FRESH // 2)]
    assert [one.sizes for one in first if one is not None] == [(10, 20)]
    same = [traffic.add(size) for size in [10, 20] * (FRESH // 2)]
    assert not any(same)
    other = [traffic.add(size) for size in [50, 60] * (3 * FRESH // 2)]
    assert next(one for one in other if one is not None).sizes[-1] == 60
