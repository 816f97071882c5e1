"""Batches padded to buckets and replayed: the same scores, captured when they come often."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from joymigrate.run.serve.ranking import buckets, captures
from joymigrate.run.serve.ranking.captures import Captures, pad_batch, why_not
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import Engine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.program import Program
from joymigrate.run.serve.ranking.tensors import as_arrays


def computing(compute: Any, device: str) -> tuple[Any, Any]:
    """A capture that computes again into the same result, as a replay does."""
    result = compute().clone()
    return lambda: result.copy_(compute()), result


def batch_of(din: Program, *sizes: tuple[int, int]) -> Any:
    return merge(din.signature, [draw(din.signature, *size, seed)
                                 for seed, size in enumerate(sizes)])  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_padded_batches_score_as_unpadded_ones_with_empty_histories(
    din: Program, seed: int
) -> None:
    random = np.random.default_rng(seed)
    batch = batch_of(din, *((int(random.integers(1, 9)), int(random.integers(0, 20)))
                            for _ in range(3)), (2, 0))  # fmt: skip
    sizes = batch.sizes
    key = (sizes.candidates + int(random.integers(0, 9)), sizes.users + int(random.integers(0, 4)),
           sizes.length + int(random.integers(0, 30)))  # fmt: skip
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
    end = time.monotonic() + 30
    engine.execute(rare)
    while "captured" not in hows and time.monotonic() < end:
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
    from joymigrate.run.serve.ranking.program import load

    model = load(din_path)
    engine = Engine(model)
    held = Captures(model, engine.gate, computing)
    batch = batch_of(model, (3, 7), (5, 9))
    key = (8, 2, 9)
    monkeypatch.setattr(held, "place", lambda sizes: key)
    held.slots[key] = held.make(key)
    before = held.run(batch.arrays, batch.sizes)
    model.state["items.weight"].mul_(-1)
    after = held.run(batch.arrays, batch.sizes)
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
