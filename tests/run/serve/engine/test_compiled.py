"""Captured steps: padded to buckets, they leave the tokens as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine import graphs
from joymigrate.run.serve.engine.graphs import Compute, GraphRunner
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions
from tests.run.serve.engine.models import expected, greedy, prompts, run, save

OPTIONS = EngineOptions(block_size=4, kv_blocks=100, max_running=6, max_batch_tokens=30)


def test_steps_from_buckets_give_the_tokens_of_transformers(tmp_path: Path) -> None:
    reference = save(tmp_path, "qwen2")
    engine = load_engine(tmp_path, OPTIONS).engine
    sizes: list[int] = []

    def replaying(compute: Compute) -> tuple[Compute, torch.Tensor]:
        """A capture that computes again into the same tensor, as a replay does."""
        result = compute()
        sizes.append(result.shape[0])
        return (lambda: result.copy_(compute())), result

    made = GraphRunner(engine.model, engine.cache, longest=100, most=6, capture=replaying)
    engine.forward = made
    asked = prompts([3, 30, 17, 5, 9])
    assert run(engine, asked, greedy(10)) == [expected(reference, ids, 10) for ids in asked]
    assert run(engine, asked[:1], greedy(10)) == [expected(reference, asked[0], 10)]
    assert sizes == sorted(sizes, reverse=True)  # captured once each, the largest bucket first
    assert set(sizes) <= {1, 2, 4, 6}
    assert 6 in sizes


def test_where_nothing_is_captured_the_reason_is_given(tmp_path: Path) -> None:
    save(tmp_path, "qwen2")
    engine = load_engine(tmp_path, OPTIONS).engine
    reasons = [
        graphs.why_not(engine.cache, torch.device(kind)) for kind in ("cpu", "xpu:0", "cuda:0")
    ]
    assert "launches nothing" in str(reasons[0])
    assert "from the host" in str(reasons[1])
    assert "'gather'" in str(reasons[2])


@pytest.mark.slow
@pytest.mark.compiler
def test_a_compiled_model_gives_the_same_tokens(tmp_path: Path) -> None:
    reference = save(tmp_path, "qwen3", head_dim=16)
    options = EngineOptions(block_size=4, kv_blocks=100, max_batch_tokens=30, compile=True)
    engine = load_engine(tmp_path, options).engine
    asked = prompts([3, 30, 17])
    assert run(engine, asked, greedy(10)) == [expected(reference, ids, 10) for ids in asked]


def test_compile_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    save(tmp_path, "qwen2")
    with pytest.raises(JoyError, match="--compile needs the decoder"):
        load_engine(tmp_path, EngineOptions(compile=True, generic=True))
