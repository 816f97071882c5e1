"""Compiled models: the same tokens, and a refusal where there is nothing to compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions
from tests.run.serve.engine.models import expected, greedy, prompts, run, save


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
