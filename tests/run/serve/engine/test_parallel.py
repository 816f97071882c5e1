"""Tensor parallel: shares of a model in several processes give what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions, Lost, Request
from tests.run.serve.engine.models import expected, greedy, prompts, run, save


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen2", {}),
        ("glm", {"head_dim": 16}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_two_processes_continue_as_one_does(
    kind: str, more: dict[str, object], tmp_path: Path
) -> None:
    reference = save(tmp_path, kind, **more)
    options = EngineOptions(
        tensor_parallel=2,
        kv_blocks=40,
        block_size=4,
        max_batch_tokens=20,
        max_model_len=100,
        threads=1,
    )
    loaded = load_engine(tmp_path, options)
    assert loaded.team is not None
    try:
        asked = prompts([3, 30, 17])
        want = [expected(reference, ids, 10) for ids in asked]
        assert run(loaded.engine, asked, greedy(10)) == want
    finally:
        loaded.team.close()
    assert not any(process.is_alive() for process in loaded.team.processes)


def test_a_model_that_cannot_be_cut_is_refused_before_processes_start(tmp_path: Path) -> None:
    save(tmp_path, "qwen2")
    with pytest.raises(JoyError, match="4 query heads cannot be shared by 3"):
        load_engine(tmp_path, EngineOptions(tensor_parallel=3))
    with pytest.raises(JoyError, match="needs the decoder"):
        load_engine(tmp_path, EngineOptions(tensor_parallel=2, generic=True))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["this process", "another one"])
def test_processes_end_when_one_of_them_fails(who: str, tmp_path: Path) -> None:
    save(tmp_path, "qwen2")
    options = EngineOptions(
        tensor_parallel=2, kv_blocks=40, block_size=4, max_model_len=100, threads=1
    )
    loaded = load_engine(tmp_path, options)
    assert loaded.team is not None
    if who == "this process":

        def failing(hidden: object) -> None:
            raise RuntimeError("out of memory")

        loaded.engine.model.logits = failing  # type: ignore[method-assign,assignment]
    else:
        loaded.team.processes[0].kill()
    loaded.engine.add(Request("a", (1, 2, 3), greedy(3)))
    with pytest.raises(Lost):
        loaded.engine.step()
    loaded.team.close(broken=True)
    assert not any(process.is_alive() for process in loaded.team.processes)
