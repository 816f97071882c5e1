"""Batches padded to buckets and replayed: the same scores, captured when they come often."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joymigrate.run.serve.ranking import buckets, captures
from joymigrate.run.serve.ranking.captures import Captures, why_not
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import Engine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.padding import Key, least_sizes, pad_batch
from joymigrate.run.serve.ranking.program import Program, load
from joymigrate.run.serve.ranking.tensors import as_arrays


def computing(compute: Any, device: str) -> tuple[Any, Any]:
    """A capture that computes again into the same result, as a replay does."""
    result = compute().clone()
    return lambda: result.copy_(compute()), result


def batch_of(din: Program, *sizes: tuple[int, int]) -> Any:
    return merge(din.signature, [draw(din.signature, *size, seed)
                                 for seed, size in enumerate(sizes)])  # fmt: skip


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(20))
def test_padded_batches_score_as_unpadded_ones_with_empty_histories(
    din: Program, seed: int
) -> None:
    random = np.random.default_rng(seed)
    batch = batch_of(din, *((int(random.integers(1, 9)), int(random.integers(0, 20)))
                            for _ in range(3)), (2, 0))  # fmt: skip
    sizes = batch.sizes
    key = Key(sizes.candidates + int(random.integers(0, 9)),
              sizes.users + int(random.integers(0, 4)),
              sizes.length + int(random.integers(0, 30)), 0)  # fmt: skip
    padded = as_arrays(din.run(pad_batch(din.signature, batch.arrays, key)))[0]
    plain = as_arrays(din.run(batch.arrays))[0]
    assert len(padded) == key[0]
    np.testing.assert_allclose(padded[: sizes.candidates], plain, atol=1e-6)


def test_what_comes_often_is_captured_in_the_background(
    din: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "FRESH", 20)
    engine = Engine(din)
    captures_ = engine.captures = Captures(din, engine.gate, computing)
    captures_.start()
    often, rare = batch_of(din, (3, 7), (5, 9)), batch_of(din, (40, 31))
    expected = as_arrays(din.run(often.arrays))[0]
    hows = set()
    end = time.monotonic() + 300
    engine.execute(rare)
    while "captured" not in hows and time.monotonic() < end:
        time.sleep(0.002)  # captures wait until no batch runs
        outputs, how = engine.execute(often)
        hows.add(how)
        np.testing.assert_allclose(outputs[0], expected, atol=1e-6)
    assert hows == {"eager", "captured"}
    assert engine.execute(rare)[1] == "eager"
    other = batch_of(din, (2, 5), (4, 9))  # another batch of the same buckets
    found, how = engine.execute(other)
    if how == "captured":
        np.testing.assert_allclose(found[0], as_arrays(din.run(other.arrays))[0], atol=1e-6)
    captures_.stop()


def test_new_weights_are_seen_by_captured_batches(
    din_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(din_path)
    engine = Engine(model)
    held = Captures(model, engine.gate, computing)
    batch = batch_of(model, (3, 7), (5, 9))
    key = Key(8, 2, 9, 0)
    monkeypatch.setattr(held, "place", lambda sizes: key)
    held.slots[key] = held.make(key)
    before = held.run(batch)
    model.state["items.weight"].mul_(-1)
    after = held.run(batch)
    assert before is not None
    assert after is not None
    assert not np.array_equal(before[0], after[0])
    np.testing.assert_allclose(after[0], as_arrays(model.run(batch.arrays))[0], atol=1e-6)


def test_a_capture_that_fails_leaves_eager_alone(
    din: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "FRESH", 5)
    monkeypatch.setattr(captures, "OFTEN", 2)

    def broken(compute: Any, device: str) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = Engine(din)
    held = engine.captures = Captures(din, engine.gate, broken)
    held.start()
    batch = batch_of(din, (3, 7))
    end = time.monotonic() + 30
    while not held.failed and time.monotonic() < end:
        assert engine.execute(batch)[1] == "eager"
    assert "not permitted" in held.failed
    held.stop()


def test_a_cpu_and_models_that_compare_candidates_are_not_captured(din: Program) -> None:
    assert "a CPU launches nothing" in why_not(din, "")
    assert why_not(din, "the model compares them") == "the model compares them"


class Jagged(torch.nn.Module):
    """A user's events are summed, by offsets or by lengths; a candidate meets its user's sum."""

    def __init__(self, by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.by = by
        self.items, self.top = torch.nn.Embedding(50, 8), torch.nn.Linear(16, 1)

    def forward(self, item: Any, past: Any, parts: Any, owner: Any) -> Any:
        tokens, users = past.shape[0], parts.shape[0] - (self.by == "offsets")
        if self.by == "offsets":
            rows = torch.bucketize(torch.arange(tokens), parts[1:], right=True)
        else:
            rows = torch.repeat_interleave(torch.arange(users), parts, output_size=tokens)
        summed = torch.zeros(users, 8).index_add(0, rows, self.items(past))
        return self.top(torch.cat([self.items(item[:, 0]), summed[owner].tanh()], 1)).squeeze(-1)


@pytest.fixture(params=["offsets", "lengths"])
def jagged(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    by = request.param
    users, count, tokens = (torch.export.Dim(name) for name in ("users", "count", "tokens"))
    parts = torch.tensor([0, 2, 5] if by == "offsets" else [2, 3])
    given = {"item": torch.zeros(4, 1, dtype=torch.long), "past": torch.arange(5), "parts": parts,
             "owner": torch.tensor([0, 1, 0, 1])}  # fmt: skip
    shapes = {"item": {0: count}, "past": {0: tokens}, "owner": {0: count},
              "parts": {0: users + 1 if by == "offsets" else users}}  # fmt: skip
    made = torch.export.export(Jagged(by).eval(), (), kwargs=given, dynamic_shapes=shapes)
    told = {"schema": "joymigrate.ranking-model/1", "inputs": {
        "item": {"role": "candidate", "ids": [50]},
        "past": {"role": "sequence", "layout": "jagged", "ids": 50},
        "parts": {"role": by, "of": "past"}, "owner": {"role": "owner"}}}  # fmt: skip
    path = tmp_path / "jagged.pt2"
    torch.export.save(made, path, extra_files={"ranking.json": json.dumps(told)})
    return load(path)


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(10))
def test_padded_jagged_batches_score_as_unpadded_ones(jagged: Program, seed: int) -> None:
    random = np.random.default_rng(seed)
    batch = batch_of(jagged, *((int(random.integers(1, 9)), int(random.integers(0, 20)))
                               for _ in range(3)), (2, 0))  # fmt: skip
    least = least_sizes(jagged.signature, batch)
    assert least.users == batch.sizes.users + 1  # the padding tokens belong to nobody's history
    key = Key(*(size + int(random.integers(0, 9)) for size in least))
    padded = pad_batch(jagged.signature, batch.arrays, key)
    assert {len(padded["item"]), len(padded["owner"])} == {key.candidates}
    assert len(padded["past"]) == key.tokens
    scores = as_arrays(jagged.run(padded))[0]
    plain = as_arrays(jagged.run(batch.arrays))[0]
    np.testing.assert_allclose(scores[: batch.sizes.candidates], plain, atol=1e-6)


def test_jagged_batches_are_captured(jagged: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FRESH", 20)
    monkeypatch.setattr(captures, "graph_class", lambda device: object)
    jagged.device = "made-up"
    assert why_not(jagged, "") == ""
    jagged.device = "cpu"
    engine = Engine(jagged)
    held = engine.captures = Captures(jagged, engine.gate, computing)
    held.start()
    batch = batch_of(jagged, (3, 7), (5, 0), (2, 9))
    expected = as_arrays(jagged.run(batch.arrays))[0]
    hows = set()
    end = time.monotonic() + 60
    while "captured" not in hows and not held.failed and time.monotonic() < end:
        outputs, how = engine.execute(batch)
        hows.add(how)
        np.testing.assert_allclose(outputs[0], expected, atol=1e-6)
    held.stop()
    assert not held.failed
    assert "captured" in hows


def test_a_capture_that_answers_otherwise_is_not_used(
    din: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "FRESH", 5)
    monkeypatch.setattr(captures, "OFTEN", 2)

    def frozen(compute: Any, device: str) -> Any:  # as where a library reads sizes on the host
        result = compute().clone()
        return lambda: None, result

    engine = Engine(din)
    held = engine.captures = Captures(din, engine.gate, frozen)
    held.start()
    batch = batch_of(din, (3, 7), (2, 4))
    end = time.monotonic() + 60
    while not held.failed and time.monotonic() < end:
        assert engine.execute(batch)[1] == "eager"
    held.stop()
    assert "answers otherwise than eager" in held.failed
    assert not held.slots


def test_a_capture_that_compares_with_nothing_is_not_used(
    din: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Captures(din, Engine(din).gate, computing)
    key = Key(4, 2, 8, 1)
    slot = held.make(key)
    assert held.disagreement(key, slot) == ""
    monkeypatch.setattr(captures, "least_sizes", lambda signature, batch: Key(5, 2, 8, 1))
    assert held.disagreement(key, slot) is None
    held.seen[key] = captures.OFTEN
    assert held.extend()
    assert not held.slots
    assert not held.extend()
    assert not held.failed


def test_jagged_captures_of_few_tokens_are_compared(jagged: Program) -> None:
    held = Captures(jagged, Engine(jagged).gate, computing)
    for key in (Key(6, 4, 3, 3), Key(6, 4, 9, 30)):
        assert held.disagreement(key, held.make(key)) == ""
