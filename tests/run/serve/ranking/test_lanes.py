"""Merged answers are those of each alone, for the right caller, whatever happens to the others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import ranking_example as example
from joymigrate.run.serve.ranking import trial
from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import QueuedRequest, RankingEngine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.program import RankingProgram, load
from joymigrate.run.serve.ranking.request import RankingRequest, check
from joymigrate.run.serve.ranking.signature import Dimensions, build
from joymigrate.run.serve.web.errors import HttpRefusal

WIDE = BatchLimits(seconds=1e9)


class Launches(TorchDispatchMode):
    """Counts operators as they reach the dispatcher."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        self.count += 1
        return function(*args, **(kwargs or {}))


def requests(din: RankingProgram, *sizes: tuple[int, int]) -> list[RankingRequest]:
    return [draw(din.signature, *size, seed) for seed, size in enumerate(sizes)]


def score(din: RankingProgram, request: RankingRequest) -> np.ndarray[Any, Any]:
    return din.run(request.arrays)[0].numpy()


def answer(engine: RankingEngine, given: list[RankingRequest]) -> list[Any]:
    """Put requests into the queue at once; results or exceptions in their order."""

    async def whole() -> list[Any]:
        tasks = [asyncio.ensure_future(engine.rank(one)) for one in given]
        await asyncio.sleep(0)
        engine.start()
        return await asyncio.gather(*tasks, return_exceptions=True)

    try:
        return asyncio.run(whole())
    finally:
        engine.close()


def test_merged_scores_are_those_of_each_alone(din: RankingProgram) -> None:
    given = requests(din, (1, 10), (5, 20), (4, 0), (17, 3), (2, 20))
    engine = RankingEngine(din, limits=WIDE)
    found = answer(engine, given)
    assert [one.merged for one in found] == [5] * 5
    for request, one in zip(given, found, strict=True):
        np.testing.assert_allclose(one.outputs[0], score(din, request), atol=1e-6)
    assert engine.counts.waste == 20 * 5 - 53


def test_three_merged_requests_launch_a_third_of_the_operators(din: RankingProgram) -> None:
    given = requests(din, (5, 20), (5, 20), (5, 20))
    with torch.no_grad(), Launches() as alone:
        for request in given:
            din.eager(**{name: torch.from_numpy(one) for name, one in request.arrays.items()})
    merged = merge(din.signature, given)
    with torch.no_grad(), Launches() as together:
        din.eager(**{name: torch.from_numpy(one) for name, one in merged.arrays.items()})
    assert together.count * 3 == alone.count


def test_a_user_of_one_key_is_computed_once(din: RankingProgram) -> None:
    first, second, other = requests(din, (3, 8), (4, 8), (2, 8))
    second.arrays.update({n: first.arrays[n] for n in ("user", "history", "lengths")})
    expected = [score(din, one) for one in (first, second, other)]
    for one in (first, second, other):
        one.key = "u"
    merged = merge(din.signature, [first, second, other])
    assert merged.shared == 1
    assert merged.arrays["user"].shape[0] == 2  # `other` has the key, but not the inputs
    out = din.run(merged.arrays)[0].numpy()
    for (start, stop), whole in zip(merged.spans, expected, strict=True):
        np.testing.assert_allclose(out[start:stop], whole, atol=1e-6)


def poisoned(din: RankingProgram, bad: int) -> RankingProgram:
    """The model, which fails when an item of a batch has this id."""

    def run(**inputs: Any) -> Any:
        if (inputs["item"] == bad).any():
            raise RuntimeError("planted")
        return din.eager(**inputs)

    return RankingProgram("din", din.path, din.signature, run)


def test_a_request_that_fails_is_isolated(din: RankingProgram) -> None:
    given = requests(din, *[(3, 4)] * 7)
    for one in given:
        one.arrays["item"][one.arrays["item"] == 499] = 498
    given[4].arrays["item"][1, 2] = 499
    engine = RankingEngine(poisoned(din, 499), limits=WIDE)
    found = answer(engine, given)
    assert isinstance(found[4], HttpRefusal)
    assert "planted" in found[4].message
    for place in (0, 1, 2, 3, 5, 6):
        np.testing.assert_allclose(found[place].outputs[0], score(din, given[place]), atol=1e-6)
    assert engine.counts.failed == 1


def test_a_cancelled_request_leaves_the_others_theirs(din: RankingProgram) -> None:
    given = requests(din, (3, 4), (5, 6), (2, 3))

    async def whole() -> list[Any]:
        engine = RankingEngine(din, limits=WIDE)
        tasks = [asyncio.ensure_future(engine.rank(one)) for one in given]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        engine.start()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        engine.close()
        assert engine.counts.cancelled == 1
        return found

    found = asyncio.run(whole())
    assert isinstance(found[1], asyncio.CancelledError)
    for place in (0, 2):
        np.testing.assert_allclose(found[place].outputs[0], score(din, given[place]), atol=1e-6)


def test_a_passed_deadline_is_said_not_computed(din: RankingProgram) -> None:
    late, fine = requests(din, (3, 4), (3, 4))
    late.deadline = 0.0
    engine = RankingEngine(din, limits=WIDE)
    found = answer(engine, [late, fine])
    assert found[0].status == 504
    assert found[1].outputs[0].shape == (3,)
    assert engine.counts.late == 1


def test_a_full_queue_refuses(din: RankingProgram) -> None:
    engine = RankingEngine(din, queue=2)
    found = answer(engine, requests(din, *[(1, 1)] * 3))
    assert [getattr(one, "status", 200) for one in found] == [200, 200, 429]


def test_many_callers_on_two_lanes_get_their_own(din: RankingProgram) -> None:
    given = requests(din, *[(1 + place % 5, place % 7) for place in range(120)])
    found = answer(RankingEngine(din, lanes=2, limits=WIDE), given)
    for request, one in zip(given, found, strict=True):
        np.testing.assert_allclose(one.outputs[0], score(din, request), atol=1e-6)


def exported(model: Any, tmp_path: Any, told: Any = None, **inputs: Any) -> RankingProgram:
    import json

    count = torch.export.Dim("count")
    program = torch.export.export(
        model.eval(), (), kwargs=inputs, dynamic_shapes={name: {0: count} for name in inputs}
    )
    path = tmp_path / "m.pt2"
    extra = {"ranking.json": json.dumps(told)} if told else {}
    torch.export.save(program, path, extra_files=extra)
    return load(path)


class Listwise(torch.nn.Module):
    """A softmax over the candidates: merging would change every score."""

    def forward(self, numbers: Any) -> Any:
        return numbers.sum(-1).softmax(0)


class Pointwise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ids = torch.nn.Embedding(10, 4)
        self.other = torch.nn.Embedding(20, 4)

    def forward(self, numbers: Any, ids: Any) -> Any:
        return numbers.sum(-1) + self.ids(ids[:, 0]).sum(-1) + self.other(ids[:, 1:]).sum((1, 2))


def test_a_model_that_compares_candidates_is_not_merged(tmp_path: Any) -> None:
    model = exported(Listwise(), tmp_path, numbers=torch.zeros(4, 3))
    found = trial.find_freedom(model)
    assert "divided by a sum over all rows" in found.alone
    assert "divided by a sum over all rows" in found.whole


def test_axes_and_bounds_are_found_in_the_graph(tmp_path: Any) -> None:
    model = exported(
        Pointwise(), tmp_path, numbers=torch.zeros(4, 3), ids=torch.zeros(4, 3, dtype=torch.long)
    )
    assert trial.find_freedom(model).alone == ""
    assert [one.role for one in model.signature.inputs] == ["candidate", "candidate"]
    assert model.signature.by_name["ids"].ids == (10, 20, 20)
    with pytest.raises(HttpRefusal, match=r"'ids'.*10 of column 0"):
        check(model.signature, {"numbers": np.zeros((1, 3), np.float32),
                                "ids": np.array([[10, 0, 0]])})  # fmt: skip
    with pytest.raises(HttpRefusal, match=r"'numbers'.*not finite"):
        check(model.signature, {"numbers": np.full((1, 3), np.nan, np.float32),
                                "ids": np.array([[1, 0, 0]])})  # fmt: skip


class Unmasked(torch.nn.Module):
    """A mean over the padded history: padding changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = torch.nn.Embedding(10, 4)

    def forward(self, past: Any) -> Any:
        return self.ids(past).mean((1, 2))


def test_padding_that_changes_scores_is_not_used(tmp_path: Any) -> None:
    count, length = torch.export.Dim("count"), torch.export.Dim("length")
    program = torch.export.export(
        Unmasked(), (), kwargs={"past": torch.zeros(4, 3, dtype=torch.long)},
        dynamic_shapes={"past": {0: count, 1: length}},
    )  # fmt: skip
    path = tmp_path / "m.pt2"
    told = '{"schema": "joymigrate.ranking-model/1", "inputs": {"past": {"pad": 0}}}'
    torch.export.save(program, path, extra_files={"ranking.json": told})
    model = load(path)
    found_free = trial.find_freedom(model)
    model.signature = found_free.signature
    assert (found_free.alone, found_free.whole) == ("", "")
    found = answer(RankingEngine(model, limits=WIDE), requests(model, (2, 3), (2, 3), (2, 5)))
    assert [one.merged for one in found] == [2, 2, 1]


@pytest.mark.parametrize("told", [{"inputs": None}, {"inputs": {"item": {"vocabulary": None}}}])
def test_a_description_with_nothing_in_it_says_nothing(told: dict[str, Any]) -> None:
    stated = [Dimensions("item", "int64", ("c",))]
    told = {"schema": "joymigrate.ranking-model/1", **told}
    outputs = [Dimensions("score", "float32", ("c",))]
    assert build(stated, outputs, told, {"item": 5}, "here") == (
        build(stated, outputs, None, {"item": 5}, "here")
    )


def test_jagged_sequences_stay_jagged() -> None:
    stated = [Dimensions("item", "int64", ("c", 2)), Dimensions("past", "int64", ("t",)),
              Dimensions("starts", "int64", ("u",)),
              Dimensions("owner", "int64", ("c",))]  # fmt: skip
    told = {"schema": "joymigrate.ranking-model/1", "inputs": {
        "past": {"role": "sequence", "layout": "jagged"},
        "starts": {"role": "offsets", "of": "past"}, "owner": {"role": "owner"}}}  # fmt: skip
    signature = build(stated, [Dimensions("score", "float32", ("c",))], told, {}, "here")
    given = [
        check(signature, {"item": np.ones((n, 2), np.int64), "past": np.arange(length)})
        for n, length in ((2, 3), (1, 0), (3, 2))
    ]
    merged = merge(signature, given)
    assert merged.arrays["past"].tolist() == [0, 1, 2, 0, 1]
    assert merged.arrays["starts"].tolist() == [0, 3, 3, 5]
    assert merged.arrays["owner"].tolist() == [0, 0, 1, 2, 2, 2]
    assert merged.waste == 0


def test_a_lane_that_waits_ends_with_the_engine(din: RankingProgram) -> None:
    engine = RankingEngine(din, lanes=2)
    engine.start()
    engine.close()
    assert not any(lane.is_alive() for lane in engine.lanes)
    assert isinstance(engine.condition, threading.Condition)


def test_the_example_scores_by_user(din: RankingProgram) -> None:
    left, right = (example.request(4, 5, seed) for seed in (1, 2))
    right["item"] = left["item"]
    scores = [
        score(din, check(din.signature, {n: t.numpy() for n, t in one.items()}))
        for one in (left, right)
    ]
    assert np.abs(scores[0] - scores[1]).max() > 1e-4
    assert QueuedRequest.__slots__


class Centred(torch.nn.Module):
    def forward(self, numbers: Any) -> Any:
        return numbers.sum(-1) - numbers.mean()


def test_a_merged_batch_that_differs_from_each_alone_ends_merging(tmp_path: Any) -> None:
    model = exported(Centred(), tmp_path, numbers=torch.zeros(4, 3))
    engine = RankingEngine(model, limits=WIDE)  # nobody asked for the proof
    given = requests(model, (2, 0), (3, 0))
    found = answer(engine, given)
    for request, one in zip(given, found, strict=True):
        np.testing.assert_allclose(one.outputs[0], score(model, request), atol=1e-6)
    assert "otherwise than alone" in engine.alone
    assert (engine.counts.compared, engine.counts.differing) == (1, 1)


class Stock(torch.nn.Module):
    def forward(self, numbers: Any) -> Any:
        return torch.where(numbers[:, 0] > 0, numbers[:, 1] / numbers[:, 2], float("-inf"))


def test_minus_infinity_is_a_score_and_nan_is_none(tmp_path: Any) -> None:
    model = exported(Stock(), tmp_path, numbers=torch.ones(4, 3))
    for row, status in (([0, 1, 1], 200), ([1, 0, 0], 500), ([1, 1, 0], 500)):
        request = check(model.signature, {"numbers": np.array([[1, 1, 1], row], np.float32)})
        (found,) = answer(RankingEngine(model), [request])
        assert getattr(found, "status", 200) == status
