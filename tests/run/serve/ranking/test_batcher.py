"""The choice of a batch: nobody misses a deadline that running alone, in order, meets."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from joymigrate.run.serve.ranking.batcher import BatchLimits, Waiting, choose
from joymigrate.run.serve.ranking.cost import BatchSizes, CostModel, features

Predict = Callable[[BatchSizes], float]


def linear(*weights: float) -> Predict:
    return lambda sizes: sum(w * f for w, f in zip(weights, features(sizes), strict=True))


LAUNCH = linear(1.0, 0.01, 0.0, 0.0, 0.0)  # nearly all of it is launching
PADDED = linear(0.1, 0.0, 0.05, 0.02, 0.001)  # mixed lengths cost


def test_small_requests_run_together() -> None:
    queue = [Waiting(BatchSizes(3), float("inf"))] * 5
    assert choose(queue, 0.0, LAUNCH, BatchLimits(seconds=10)) == 5


def test_a_deadline_that_the_batch_would_miss_ends_it() -> None:
    # Alone 1.03 s; two together 1.06, three 1.09.
    queue = [Waiting(BatchSizes(3), 1.07)] + [Waiting(BatchSizes(3), 9.0)] * 4
    assert choose(queue, 0.0, LAUNCH, BatchLimits(seconds=10)) == 2


def test_a_hopeless_deadline_holds_nobody_back() -> None:
    queue = [Waiting(BatchSizes(3), 0.5)] + [Waiting(BatchSizes(3), 9.0)] * 4
    assert choose(queue, 0.0, LAUNCH, BatchLimits(seconds=10)) == 5


def test_an_oversized_request_passes_alone() -> None:
    queue = [Waiting(BatchSizes(5000), 99.0), Waiting(BatchSizes(1), 99.0)]
    assert choose(queue, 0.0, LAUNCH, BatchLimits(seconds=10)) == 1
    assert choose(queue[::-1], 0.0, LAUNCH, BatchLimits(seconds=10)) == 1


def test_padding_dearer_than_a_batch_of_its_own_is_not_merged() -> None:
    queue = [Waiting(BatchSizes(1, 1, 1), 99.0), Waiting(BatchSizes(1, 1, 100), 99.0)]
    assert choose(queue, 0.0, PADDED, BatchLimits(seconds=1000)) == 1


def ends(
    requests: list[tuple[float, Waiting]], predict: Predict, limits: BatchLimits | None
) -> list[float]:
    """When each request ends, on one lane; `limits` None: one by one."""
    free, done, place = 0.0, [0.0] * len(requests), 0
    while place < len(requests):
        now = max(free, requests[place][0])
        queue = [one for arrived, one in requests[place:] if arrived <= now]
        count = 1 if limits is None else choose(queue, now, predict, limits)
        sizes = requests[place][1].sizes
        for _, one in requests[place + 1 : place + count]:
            sizes = sizes.join(one.sizes)
        free = now + predict(sizes)
        for _ in range(count):
            done[place], place = free, place + 1
    return done


@pytest.mark.parametrize("predict", [LAUNCH, PADDED, linear(0.5, 0.1, 0.01, 0.0, 0.0)])
def test_nobody_misses_a_deadline_that_one_by_one_meets(predict: Predict) -> None:
    draw = random.Random(7)
    met = merged = 0
    for _ in range(300):
        time, requests = 0.0, []
        for _ in range(draw.randint(1, 30)):
            time += draw.expovariate(draw.choice([0.3, 1.0, 5.0]))
            sizes = BatchSizes(draw.choice([1, 2, 5, 50]), 1, draw.choice([0, 1, 5, 40]))
            patience = predict(sizes) * draw.choice([0.5, 1.0, 1.5, 4.0, 20.0])
            requests.append((time, Waiting(sizes, time + patience)))
        alone = ends(requests, predict, None)
        batched = ends(requests, predict, BatchLimits(seconds=draw.choice([2.0, 20.0])))
        for (_, one), single, together in zip(requests, alone, batched, strict=True):
            if single <= one.deadline:
                met += 1
                assert together <= one.deadline + 1e-9
        merged += sum(batched[i] == batched[i + 1] for i in range(len(batched) - 1))
    assert met > 500
    assert merged > 100  # the property was tried on batches, not on single requests


def test_the_cost_model_finds_the_weights_of_measurements() -> None:
    draw = random.Random(1)
    true = linear(2e-4, 3e-6, 1e-7, 2e-8, 0.0)
    model = CostModel()
    for _ in range(200):
        sizes = BatchSizes(draw.randint(1, 200), draw.randint(1, 8), draw.randint(0, 100))
        model.observe(sizes, true(sizes) * draw.uniform(0.95, 1.05))
    for sizes in (BatchSizes(1, 1, 1), BatchSizes(50, 2, 30), BatchSizes(200, 8, 100)):
        assert model.predict(sizes) == pytest.approx(true(sizes), rel=0.1)
    assert 1.0 <= model.margin <= 1.1
    assert model.error < 0.06


def test_the_cost_model_follows_a_machine_that_got_slower() -> None:
    model = CostModel()
    for seconds in [1e-3] * 200 + [3e-3] * 600:
        model.observe(BatchSizes(10), seconds)
    assert model.predict(BatchSizes(10)) == pytest.approx(3e-3, rel=0.1)
