"""The engine against transformers, text by text, in mixed batches and under every disturbance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions, Request, Sampling
from tests.run.serve.engine.models import (
    VOCABULARY,
    drain,
    expected,
    greedy,
    prompts,
    run,
    save,
    tokens,
)

LENGTHS = (1, 40, 7, 16, 23, 60, 4, 31)
COUNT = 14


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model's folder, filled, and what transformers computes."""
    made = tmp_path_factory.mktemp("qwen2")
    return made, save(made)


@pytest.fixture(scope="module")
def folder(saved: tuple[Path, Any]) -> Path:
    return saved[0]


@pytest.fixture(scope="module")
def reference(saved: tuple[Path, Any]) -> Any:
    return saved[1]


@pytest.fixture(scope="module")
def asked() -> list[list[int]]:
    made = prompts(LENGTHS)
    return [*made, [*made[1][:32], 5, 6], made[1]]  # two that begin as another does


@pytest.fixture(scope="module")
def want(reference: Any, asked: list[list[int]]) -> list[list[int]]:
    return [expected(reference, ids, COUNT) for ids in asked]


def options(**more: Any) -> EngineOptions:
    return EngineOptions(**{"block_size": 4, "kv_blocks": 200, "max_batch_tokens": 512, **more})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"prefix_cache": False},
        {"max_batch_tokens": 13},
        {"max_batch_tokens": 13, "prefix_cache": False},
        {"kv_blocks": 26, "max_model_len": 100},
        {"kv_blocks": 26, "max_model_len": 100, "prefix_cache": False, "max_batch_tokens": 9},
        {"max_running": 2},
        {"block_size": 16},
        {"attention": "reference"},
        {"generic": True},
        {"generic": True, "kv_blocks": 26, "max_model_len": 100, "max_batch_tokens": 13},
    ],
    ids=str,
)
def test_greedy_tokens_are_those_of_transformers(
    folder: Path, asked: list[list[int]], want: list[list[int]], more: dict[str, Any]
) -> None:
    engine = load_engine(folder, options(**more)).engine
    assert run(engine, asked, greedy(COUNT)) == want
    stats = engine.stats()
    assert stats.blocks_used == 0
    assert (stats.preemptions > 0) == ("kv_blocks" in more)
    assert engine.model.path == ("transformers" if more.get("generic") else "decoder")


def test_a_known_beginning_is_not_computed_again(
    folder: Path, asked: list[list[int]], want: list[list[int]]
) -> None:
    engine = load_engine(folder, options()).engine
    run(engine, asked[1:2], greedy(COUNT))
    engine.add(Request("again", tuple(asked[1]), greedy(COUNT)))
    outputs = drain(engine)["again", 0]
    assert tokens(outputs) == want[1]
    usage = outputs[-1].usage
    assert usage is not None
    assert (usage.prompt, usage.completion, usage.cached) == (40, COUNT, 36)


def test_an_abort_frees_the_blocks_and_leaves_the_others_as_they_are(
    folder: Path, asked: list[list[int]], want: list[list[int]]
) -> None:
    engine = load_engine(folder, options(max_batch_tokens=20)).engine
    for i, ids in enumerate(asked):
        engine.add(Request(str(i), tuple(ids), greedy(COUNT)))
    found: dict[str, list[int]] = {}
    for number in range(1000):
        if engine.idle:
            break
        for output in engine.step():
            found.setdefault(output.request_id, []).extend(output.new_ids)
        for gone in {3: ["1", "9"], 6: ["5"], 9: ["0", "7"]}.get(number, []):
            for output in engine.abort(gone):
                assert output.finish_reason == "abort"
            assert gone not in engine.texts
    stats = engine.stats()
    assert stats.blocks_used == 0
    assert stats.finished["abort"] == 5
    for i in (2, 3, 4, 6, 8):
        assert found[str(i)] == want[i]


def test_a_seed_gives_the_same_tokens_whatever_else_runs(
    folder: Path, asked: list[list[int]]
) -> None:
    sampling = Sampling(max_tokens=COUNT, seed=11, temperature=0.9, top_p=0.95)
    alone = run(load_engine(folder, options()).engine, asked[4:5], sampling)[0]
    engine = load_engine(folder, options(kv_blocks=30, max_model_len=100)).engine
    for i, ids in enumerate(asked):
        other = Sampling(max_tokens=COUNT, seed=i, top_k=5 * (i % 3), temperature=0.5)
        engine.add(Request(str(i), tuple(ids), sampling if i == 4 else other))
    assert tokens(drain(engine)["4", 0]) == alone


def test_several_texts_of_one_prompt_differ_and_share_its_blocks(
    folder: Path, asked: list[list[int]]
) -> None:
    engine = load_engine(folder, options()).engine
    engine.add(Request("a", tuple(asked[1]), Sampling(max_tokens=8, seed=3, n=3)))
    found = drain(engine)
    texts = [tokens(found["a", i]) for i in range(3)]
    assert len({tuple(text) for text in texts}) == 3
    assert [found["a", i][-1].cached_tokens for i in range(3)] == [0, 36, 36]
    engine.add(Request("b", tuple(asked[1]), Sampling(max_tokens=8, seed=3)))
    assert tokens(drain(engine)["b", 0]) == texts[0]


def test_prompt_logprobs_are_those_of_the_model(
    folder: Path, reference: Any, asked: list[list[int]]
) -> None:
    ids = asked[1]
    engine = load_engine(folder, options(max_batch_tokens=16)).engine
    run(engine, [ids], greedy(2))  # its blocks are cached; the states are wanted all the same
    engine.add(Request("a", tuple(ids), greedy(2, prompt_logprobs=2, logprobs=1)))
    outputs = drain(engine)["a", 0]
    listed = outputs[0].prompt_logprobs
    assert listed is not None
    assert listed[0] is None
    with torch.inference_mode():
        logs = torch.log_softmax(reference(torch.tensor([ids])).logits[0], -1)
    for place, entry in enumerate(listed[1:]):
        assert entry is not None
        assert entry.id == ids[place + 1]
        # float32 sums in another order: a few units of the last place of numbers near 5
        assert entry.logprob == pytest.approx(float(logs[place, entry.id]), abs=1e-4)
        assert [token for token, _ in entry.top] == logs[place].topk(2).indices.tolist()
    assert len(listed) == len(ids)
    assert all(output.prompt_logprobs is None for output in outputs[1:])
    assert outputs[0].logprobs is not None


def test_max_tokens_0_scores_the_prompt_and_ends(folder: Path, asked: list[list[int]]) -> None:
    engine = load_engine(folder, options()).engine
    engine.add(Request("a", tuple(asked[2]), greedy(0, prompt_logprobs=0)))
    engine.add(Request("b", tuple(asked[2]), greedy(0)))
    found = drain(engine)
    [only] = found["a", 0]
    assert only.finish_reason == "length"
    assert only.prompt_logprobs is not None
    assert len(only.prompt_logprobs) == len(asked[2])
    assert found["b", 0][-1].finish_reason == "length"
    assert engine.stats().blocks_used == 0


def test_the_end_of_sequence_ends_unless_it_is_ignored(
    folder: Path, want: list[list[int]], asked: list[list[int]]
) -> None:
    loaded = load_engine(folder, options())
    end = want[1][4]
    first = want[1].index(end)
    loaded.engine.ends = (end,)
    assert run(loaded.engine, asked[1:2], greedy(COUNT))[0] == want[1][: first + 1]
    assert run(loaded.engine, asked[1:2], greedy(COUNT, ignore_eos=True))[0] == want[1]
    longer = run(loaded.engine, asked[1:2], greedy(COUNT, min_tokens=first + 2))[0]
    assert len(longer) > first + 1
    assert end not in longer[: first + 2]


def test_a_stop_token_ends_and_is_named(
    folder: Path, want: list[list[int]], asked: list[list[int]]
) -> None:
    engine = load_engine(folder, options()).engine
    token = want[1][3]
    engine.add(Request("a", tuple(asked[1]), greedy(COUNT, stop_token_ids=(token,))))
    last = drain(engine)["a", 0][-1]
    assert (last.finish_reason, last.stop) == ("stop", token)


def test_a_smaller_priority_goes_first(folder: Path, asked: list[list[int]]) -> None:
    engine = load_engine(folder, options(max_running=1)).engine
    for name, priority in (("late", 5), ("soon", 0), ("middle", 2)):
        engine.add(Request(name, tuple(asked[0]), greedy(2), priority=priority))
    order = []
    while not engine.idle:
        order += [o.request_id for o in engine.step() if o.finish_reason]
    assert order == ["soon", "middle", "late"]


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (Request("a", ()), "the prompt is empty"),
        (Request("a", (VOCABULARY,)), "outside the vocabulary"),
        (Request("a", (1,) * 101), "101 tokens"),
        (Request("a", (1,), images=("x",)), "does not read images"),
        (Request("a", (1,), Sampling(logit_bias={VOCABULARY: 1})), "outside the vocabulary"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_that_can_never_run_is_refused(
    folder: Path, request_: Request, what: str
) -> None:
    engine = load_engine(folder, options(max_model_len=100)).engine
    with pytest.raises(JoyError, match=what):
        engine.add(request_)
    assert engine.idle


def test_too_many_waiting_requests_are_refused(folder: Path) -> None:
    engine = load_engine(folder, options(max_waiting=2)).engine
    for name in "ab":
        engine.add(Request(name, (1, 2), greedy(1)))
    with pytest.raises(JoyError, match="wait already"):
        engine.add(Request("c", (1, 2), greedy(1)))


def test_an_id_in_use_is_refused(folder: Path) -> None:
    engine = load_engine(folder, options()).engine
    engine.add(Request("a", (1, 2), greedy(1)))
    with pytest.raises(JoyError, match="in use"):
        engine.add(Request("a", (1, 2), greedy(1)))


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    reference = save(tmp_path, "llama", shard="100KB", tie_word_embeddings=False)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    [ids] = prompts([20])
    engine = load_engine(tmp_path, options()).engine
    assert run(engine, [ids], greedy(8))[0] == expected(reference, ids, 8)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    save(tmp_path, "llama")
    return tmp_path


def test_a_folder_that_is_no_model_is_one_clear_error(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="no such model folder"):
        load_engine(tmp_path / "nothing")
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    with pytest.raises(JoyError, match="no safetensors file"):
        load_engine(broken)
    weights.unlink()
    with pytest.raises(JoyError, match="no safetensors weights"):
        load_engine(broken)
    (broken / "config.json").write_text("{")
    with pytest.raises(JoyError, match="not JSON"):
        load_engine(broken)
    (broken / "config.json").unlink()
    with pytest.raises(JoyError, match=r"no config\.json"):
        load_engine(broken)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(broken: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    path = broken / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    with pytest.raises(JoyError, match=f"no tensor '{name}'"):
        load_engine(broken)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"device": "abacus"}, "no device"),
        ({"max_model_len": 9999}, "max_model_len"),
        ({"attention": "varlen"}, "varlen"),
        ({"kv_memory_bytes": 10, "kv_blocks": None}, "no memory for one block"),
    ],
    ids=str,
)
def test_options_that_cannot_be_met_are_errors(
    folder: Path, more: dict[str, Any], what: str
) -> None:
    with pytest.raises(JoyError, match=what):
        load_engine(folder, options(**more))


def test_bfloat16_runs_on_reordered_weights(folder: Path, asked: list[list[int]]) -> None:
    loaded = load_engine(folder, options(dtype="bfloat16"))
    assert loaded.info.linear in ("prepacked", "plain")  # plain where oneDNN has no bfloat16
    assert len(run(loaded.engine, asked[:3], greedy(4))[2]) == 4


class Stubborn:
    """A guide that fails at its second token."""

    def __init__(self) -> None:
        self.asked = 0

    def mask(self) -> torch.Tensor:
        self.asked += 1
        if self.asked > 1:
            raise ValueError("no way on")
        return torch.full((4,), -1, dtype=torch.int32)

    def accept(self, token: int) -> None:
        pass


def test_a_guide_that_fails_ends_its_own_text_alone(
    folder: Path, want: list[list[int]], asked: list[list[int]]
) -> None:
    engine = load_engine(folder, options()).engine
    engine.add(Request("a", tuple(asked[1]), greedy(COUNT), guide=Stubborn))
    engine.add(Request("b", tuple(asked[2]), greedy(COUNT)))
    found = drain(engine)
    last = found["a", 0][-1]
    assert (last.finish_reason, last.error) == (
        "error",
        "the grammar cannot be followed: no way on",
    )
    assert tokens(found["b", 0]) == want[2]


class Shapeless(Stubborn):
    """A guide whose mask is none."""

    def mask(self) -> torch.Tensor:
        return torch.tensor(-1, dtype=torch.int32)


class Rejecting(Stubborn):
    """A guide that does not take what it allowed."""

    def mask(self) -> torch.Tensor:
        return torch.full((4,), -1, dtype=torch.int32)

    def accept(self, token: int) -> None:
        raise ValueError("not this one")


@pytest.mark.parametrize(
    ("guide", "why"),
    [(Shapeless, "cannot be chosen"), (Rejecting, "cannot be appended: ValueError")],
)
def test_a_text_that_fails_in_a_step_ends_alone(
    folder: Path, want: list[list[int]], asked: list[list[int]], guide: type, why: str
) -> None:
    engine = load_engine(folder, options()).engine
    engine.add(Request("a", tuple(asked[1]), greedy(COUNT), guide=guide))
    engine.add(Request("b", tuple(asked[2]), greedy(COUNT)))
    engine.add(Request("c", tuple(asked[3]), Sampling(max_tokens=5, seed=3, n=2), guide=guide))
    found = drain(engine)
    for text in (("a", 0), ("c", 0), ("c", 1)):
        assert found[text][-1].finish_reason == "error"
        assert why in str(found[text][-1].error)
    assert tokens(found["b", 0]) == want[2]
    assert engine.idle
    assert engine.stats().blocks_used == 0


def test_broken_scores_end_a_text_with_the_reason(folder: Path) -> None:
    engine = load_engine(folder, options()).engine
    engine.model.norm = torch.full((64,), float("nan"))  # type: ignore[attr-defined]
    engine.add(Request("a", (1, 2), greedy(3)))
    [only] = drain(engine)["a", 0]
    assert only.finish_reason == "error"
    assert "not numbers" in str(only.error)
    assert engine.stats().blocks_used == 0
