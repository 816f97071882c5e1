"""Large requests in pieces: the same scores, others between them, one version of the weights."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from joymigrate.run.serve.ranking import slicing
from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.cost import BatchSizes
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.program import RankingProgram
from joymigrate.run.serve.ranking.signature import Dimensions, build

LIMITS = BatchLimits(seconds=1.0)


def predict(sizes: BatchSizes) -> float:
    return 0.1 + sizes.candidates * 1e-3


@pytest.mark.parametrize("count", [1, 256, 901, 1799, 1800, 1801, 5000, 17_001])
def test_pieces_hold_every_candidate_once_and_take_about_a_batch(
    din: RankingProgram, count: int
) -> None:
    request = draw(din.signature, count, 3)
    parts = slicing.pieces(din.signature, request, predict, LIMITS, 0.0)
    items = np.concatenate([one.arrays["item"] for one in parts])
    np.testing.assert_array_equal(items, request.arrays["item"])
    assert all(predict(one.sizes) <= LIMITS.seconds for one in parts)
    assert (len(parts) == 1) == (count <= 900)
    assert max(one.sizes.candidates for one in parts) <= 2 * min(
        one.sizes.candidates for one in parts
    )


def test_what_cannot_gain_is_left_whole(din: RankingProgram) -> None:
    request = draw(din.signature, 5000, 3)

    def parts(predict: Any, deadline: float = float("inf")) -> int:
        request.deadline = deadline
        return len(slicing.pieces(din.signature, request, predict, LIMITS, 0.0))

    assert parts(predict) > 1
    assert parts(lambda sizes: 0.9 + sizes.candidates * 1e-3) == 1  # the user's side is the cost
    assert parts(predict, deadline=6.0) == 1  # it may miss its deadline behind others
    assert parts(predict, deadline=60.0) > 1
    tokens = build(
        [Dimensions("item", "int64", ("n",)), Dimensions("words", "int64", ("t",)),
         Dimensions("lengths", "int64", ("n",))],
        [Dimensions("score", "float32", ("n",))],
        {"schema": "joymigrate.ranking-model/1",
         "inputs": {"words": {"role": "sequence", "layout": "jagged"},
                    "lengths": {"role": "lengths", "of": "words"}}},
        {}, "test",
    )  # fmt: skip
    assert not slicing.divisible(tokens)  # words of each candidate


def test_sliced_scores_are_those_of_the_whole_and_others_run_between(din: RankingProgram) -> None:
    engine = RankingEngine(din, limits=BatchLimits(seconds=0.025, candidates=300))
    large, small = draw(din.signature, 2000, 5, 1), draw(din.signature, 2, 5, 2)
    ended: list[str] = []

    async def one(name: str, request: Any) -> Any:
        found = await engine.rank(request)
        ended.append(name)
        return found

    async def run() -> list[Any]:
        both = [asyncio.ensure_future(one("large", large)),
                asyncio.ensure_future(one("small", small))]  # fmt: skip
        await asyncio.sleep(0)
        engine.start()
        return await asyncio.gather(*both)

    try:
        found, _ = asyncio.run(run())
    finally:
        engine.close()
    assert ended == ["small", "large"]
    assert engine.counts.sliced == 1
    assert engine.counts.candidates == 4002  # the first one is computed whole, too
    assert (engine.counts.compared, engine.counts.differing) == (2, 0)
    np.testing.assert_allclose(found.outputs[0], din.run(large.arrays)[0].numpy(), atol=1e-6)


def test_an_answer_in_pieces_is_of_one_version(
    din: RankingProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RankingEngine(din, limits=BatchLimits(seconds=0.025, candidates=300))
    ran = []
    execute = engine.execute

    def changing(batch: Any) -> Any:
        found = execute(batch)
        ran.append((batch.sizes.candidates, engine.version))
        if len(ran) in (2, 5):  # new weights behind the second and the fifth batch
            engine.version = str(len(ran) + 10)
        return found

    monkeypatch.setattr(engine, "execute", changing)
    engine.start()
    try:
        found = asyncio.run(engine.rank(draw(din.signature, 900, 5)))
    finally:
        engine.close()
    assert len(found.outputs[0]) == 900
    assert {version for _, version in ran[-3:]} == {found.version}
    assert len(ran) > 3


def test_an_endless_row_of_versions_is_answered_whole(
    din: RankingProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RankingEngine(din, limits=BatchLimits(seconds=0.025, candidates=300))
    sizes = []
    execute = engine.execute

    def changing(batch: Any) -> Any:
        found = execute(batch)
        sizes.append(batch.sizes.candidates)
        engine.version = str(time.perf_counter_ns())
        return found

    monkeypatch.setattr(engine, "execute", changing)
    engine.start()
    try:
        found = asyncio.run(engine.rank(draw(din.signature, 900, 5)))
    finally:
        engine.close()
    assert sizes[-1] == 900
    assert len(found.outputs[0]) == 900
