"""The engine's thread: outputs reach their event loops, and whoever leaves frees what they held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine import (
    AsyncEngine,
    EngineOptions,
    EngineOutput,
    Request,
    Sampling,
    recover,
)
from joymigrate.run.serve.engine.types import Lost
from tests.run.serve.engine.models import expected, greedy, prompts, save


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("async")
    return folder, save(folder)


@pytest.fixture
def engine(reference: tuple[Path, Any]) -> Iterator[AsyncEngine]:
    made = AsyncEngine.load(reference[0], EngineOptions(block_size=4, kv_blocks=200, threads=1))
    yield made
    made.stop()


async def collect(engine: AsyncEngine, request: Request) -> list[EngineOutput]:
    return [output async for output in engine.generate(request)]


def test_requests_at_once_get_their_own_tokens(
    engine: AsyncEngine, reference: tuple[Path, Any]
) -> None:
    asked = prompts([5, 30, 12])

    async def main() -> list[list[EngineOutput]]:
        return await asyncio.gather(
            *(collect(engine, Request(str(i), tuple(p), greedy(9))) for i, p in enumerate(asked))
        )

    for ids, outputs in zip(asked, asyncio.run(main()), strict=True):
        made = [token for output in outputs for token in output.new_ids]
        assert made == expected(reference[1], ids, 9)
        assert [output.finish_reason for output in outputs][-1] == "length"


def test_a_caller_that_leaves_frees_its_blocks(engine: AsyncEngine) -> None:
    async def main() -> None:
        stream = engine.generate(Request("a", (1, 2, 3), greedy(200)))
        await stream.__anext__()
        await stream.aclose()
        # What comes next is done after the abort was: the thread works in order.
        await collect(engine, Request("b", (1,), greedy(1)))
        assert engine.stats().blocks_used == 0
        assert engine.stats().finished["abort"] == 1

    asyncio.run(main())


def test_an_abort_ends_the_stream_with_its_reason(engine: AsyncEngine) -> None:
    async def main() -> list[EngineOutput]:
        found = []
        async for output in engine.generate(Request("a", (1, 2, 3), greedy(200))):
            found.append(output)
            if len(found) == 2:
                engine.abort("a")
        return found

    assert asyncio.run(main())[-1].finish_reason == "abort"


def test_a_refused_request_raises_where_it_was_asked(engine: AsyncEngine) -> None:
    with pytest.raises(JoyError, match="empty"):
        asyncio.run(collect(engine, Request("a", ())))
    outputs = asyncio.run(collect(engine, Request("b", (1,), greedy(2))))
    assert outputs[-1].finish_reason == "length"


def test_a_failing_step_fails_every_request_and_is_kept(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.engine, "forward", lambda batch: 1 / 0)
    monkeypatch.setattr(recover, "PATIENCE_SECONDS", (0.0,))

    async def main() -> list[Any]:
        both = (collect(engine, Request(name, (1, 2), greedy(3))) for name in "ab")
        return await asyncio.gather(*both, return_exceptions=True)

    assert all("ZeroDivisionError" in str(error) for error in asyncio.run(main()))
    assert isinstance(engine.failed, Lost)
    assert isinstance(engine.failed.__cause__, ZeroDivisionError)
    with pytest.raises(RuntimeError, match="the engine failed"):
        asyncio.run(collect(engine, Request("c", (1,))))


def test_closing_ends_what_runs(engine: AsyncEngine) -> None:
    async def main() -> str:
        stream = engine.generate(Request("a", (1, 2, 3), greedy(250)))
        await stream.__anext__()
        await engine.close()
        with pytest.raises(RuntimeError) as caught:
            async for _ in stream:
                pass
        return str(caught.value)

    assert asyncio.run(main()) == "the engine is closed"


@pytest.mark.parametrize("bare", [False, True], ids=["", "saved without its head"])
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "last token"])
def test_embeddings_are_the_models_states(
    reference: tuple[Path, Any], tmp_path: Path, mean: bool, bare: bool
) -> None:
    import json
    import shutil

    import torch

    folder = tmp_path / "embedder"
    shutil.copytree(reference[0], folder)
    kinds = ("models.Transformer", "models.Pooling", "models.Normalize")
    modules = [{"type": f"sentence_transformers.{kind}", "path": kind} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / kinds[1]).mkdir()
    pooling: dict[str, Any] = {
        "pooling_mode_mean_tokens": mean,
        "pooling_mode_lasttoken": not mean,
    }
    if bare:  # folders of newer versions name the way
        pooling = {"pooling_mode": "mean" if mean else "lasttoken"}
    (folder / kinds[1] / "config.json").write_text(json.dumps(pooling))
    if bare:
        reference[1].model.save_pretrained(folder)
    options = EngineOptions(block_size=4, kv_blocks=60, max_batch_tokens=8, threads=1)
    engine = AsyncEngine.load(folder, options)
    asked = prompts([3, 21])
    assert engine.embed is not None
    rows = asyncio.run(engine.embed(asked))
    engine.stop()
    for ids, row in zip(asked, rows, strict=True):
        with torch.inference_mode():
            states = reference[1].model(torch.tensor([ids])).last_hidden_state[0]
        want = torch.nn.functional.normalize(states.mean(0) if mean else states[-1], dim=0)
        assert torch.allclose(torch.tensor(row), want, atol=1e-5)


@pytest.mark.parametrize("settings", [None, "[]", '{"pooling_mode": "cls"}', "{}"])
def test_a_way_of_pooling_that_is_not_served_is_named(tmp_path: Path, settings: str | None) -> None:
    import json

    from joymigrate.run.serve.engine.pooling import pooling_of

    modules = [{"type": f"models.{kind}", "path": kind} for kind in ("Transformer", "Pooling")]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    if settings is not None:
        (tmp_path / "Pooling").mkdir()
        (tmp_path / "Pooling" / "config.json").write_text(settings)
    with pytest.raises(JoyError, match="pooling"):
        pooling_of(tmp_path)


def test_a_model_that_does_not_say_how_it_embeds_does_not(engine: AsyncEngine) -> None:
    assert engine.embed is None


def test_text_streams_with_the_folders_tokenizer(
    reference: tuple[Path, Any], tmp_path: Path
) -> None:
    import shutil

    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "worded"
    shutil.copytree(reference[0], folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:97]
    core = Tokenizer(kinds.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder)
    engine = AsyncEngine.load(folder, EngineOptions(block_size=4, kv_blocks=60, threads=1))
    ids = engine.tokens.encode("Hello")
    assert ids == engine.tokenizer("Hello")["input_ids"]
    outputs = asyncio.run(
        collect(engine, Request("a", tuple(ids), Sampling(max_tokens=30, seed=1)))
    )
    made = [token for output in outputs for token in output.new_ids]
    text = "".join(output.text for output in outputs)
    whole = engine.tokenizer.decode(ids + made)
    assert text == whole[len("Hello") :]
    word = text[10:13]
    stopped = asyncio.run(
        collect(engine, Request("b", tuple(ids), Sampling(max_tokens=30, seed=1, stop=(word,))))
    )
    assert "".join(output.text for output in stopped) == text[: text.index(word)]
    assert stopped[-1].stop == word
    engine.stop()
