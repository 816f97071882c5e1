"""Prompt lookup and draft models: fewer steps, and not one other token."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="pip install 'joymigrate[serve]'")

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.drafts import Lookup
from joymigrate.run.serve.engine.load import load_engine, same_words
from joymigrate.run.serve.engine.types import EngineOptions, EngineOutput, Request, Sampling

from .models import VOCABULARY, drain, greedy, prompts, save, tokens

ROOM: dict[str, Any] = {"dtype": "float32", "block_size": 4, "kv_blocks": 200, "threads": 1}
KINDS: dict[str, Sampling] = {
    "greedy": greedy(40),
    "penalised": greedy(40, repetition_penalty=1.1, frequency_penalty=0.2),
    "sampled": Sampling(max_tokens=40, temperature=0.3, seed=5),
    "filtered": Sampling(max_tokens=40, temperature=0.5, top_k=4, seed=6),
    "choices": Sampling(max_tokens=25, temperature=0.4, seed=7, n=3),
    "numbered": greedy(30, logprobs=2, prompt_logprobs=1),
    "stopped": greedy(40, stop_token_ids=(11, 12, 13, 14, 15, 16, 17, 18), min_tokens=9),
}


class Even:
    """A guide that lets even tokens follow even steps."""

    def __init__(self) -> None:
        self.made = 0

    def mask(self) -> Any:
        import torch

        word = 0x55555555 if self.made % 3 else 0x7FFFFFFF
        return torch.full((-(-VOCABULARY // 32),), word, dtype=torch.int32)

    def accept(self, token: int) -> None:
        self.made += 1


def repeating(count: int) -> list[list[int]]:
    """Prompts that say the same words again and again."""
    return [words * 5 for words in prompts([5, 7, 4, 9][:count])]


def outputs_of(folder: Path, **more: Any) -> tuple[Any, dict[tuple[str, int], list[EngineOutput]]]:
    engine = load_engine(folder, EngineOptions(**{**ROOM, **more})).engine
    for kind, sampling in KINDS.items():
        for i, ids in enumerate(repeating(3)):
            engine.add(Request(f"{kind} {i}", tuple(ids), sampling))
    engine.add(Request("guided", tuple(repeating(1)[0]), greedy(30), guide=Even))
    return engine, drain(engine)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen2", {}),
        # Texts are sent back to wait.
        pytest.param("qwen2", {"kv_blocks": 24, "max_running": 6}, marks=pytest.mark.dear),
        ("qwen2", {"max_batch_tokens": 16}),
        pytest.param("gemma2", {"prefix_cache": False}, marks=pytest.mark.dear),
        pytest.param("gpt_neox", {}, marks=pytest.mark.dear),  # through transformers
    ],
)
def test_drafts_change_no_token_and_save_steps(
    tmp_path: Path, kind: str, more: dict[str, Any]
) -> None:
    save(tmp_path, kind)
    plain, want = outputs_of(tmp_path, **more)
    fast, found = outputs_of(tmp_path, prompt_lookup=5, **more)
    assert found.keys() == want.keys()
    for key, rows in want.items():
        assert tokens(found[key]) == tokens(rows), key
        assert found[key][-1].finish_reason == rows[-1].finish_reason
        assert found[key][-1].usage == rows[-1].usage or more
        a, b = (
            [n.logprob for row in each for n in row.logprobs or ()] for each in (found[key], rows)
        )
        assert a == pytest.approx(b, abs=1e-4)
    stats = fast.stats()
    assert 0 < stats.accepted <= stats.drafted
    assert fast.pool.used == plain.pool.used == 0
    if not more:
        assert stats.steps < plain.stats().steps


@pytest.mark.parametrize(
    ("kind", "small", "more"),
    [
        ("qwen2", {"kind": "qwen2", "num_hidden_layers": 1, "seed": 3}, {}),
        ("qwen2", {"kind": "qwen2"}, {}),  # the same model: it is always right
        pytest.param(
            "qwen2",
            {"kind": "gpt_neox"},
            {"kv_blocks": 24, "max_running": 6},
            marks=pytest.mark.slow,
        ),
        ("qwen2", {"kind": "qwen2", "vocab_size": VOCABULARY + 40}, {"max_batch_tokens": 16}),
        pytest.param(
            "gpt_neox",
            {"kind": "qwen2", "vocab_size": VOCABULARY - 20},
            {},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_draft_model_changes_no_token(
    tmp_path: Path, kind: str, small: dict[str, Any], more: dict[str, Any]
) -> None:
    save(tmp_path / "large", kind)
    save(tmp_path / "small", **small)
    _, want = outputs_of(tmp_path / "large", **more)
    fast, found = outputs_of(
        tmp_path / "large", draft_model=str(tmp_path / "small"), draft_tokens=3, **more
    )
    assert {key: tokens(rows) for key, rows in found.items()} == {
        key: tokens(rows) for key, rows in want.items()
    }
    stats, drafter = fast.stats(), fast.scheduler.drafter
    assert stats.drafted > 0
    assert drafter.failures == 0
    drafter.keep([])
    assert fast.pool.used == drafter.pool.used == 0
    if small == {"kind": kind}:
        engine = load_engine(tmp_path / "large", fast.options).engine
        engine.add(Request("alone", tuple(prompts([9])[0]), greedy(40)))
        drain(engine)
        stats = engine.stats()
        assert stats.accepted == stats.drafted == 29, "39 tokens behind the first, 3 of 4 drafted"
        assert stats.steps == 11


def test_a_draft_model_that_fails_costs_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path)
    engine = load_engine(tmp_path, EngineOptions(**ROOM, draft_model=str(tmp_path))).engine
    drafter: Any = engine.scheduler.drafter

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(drafter.model, "hidden", fail)
    engine.add(Request("a", tuple(prompts([9])[0]), greedy(8)))
    assert len(tokens(drain(engine)["a", 0])) == 8
    assert drafter.failures == 6, "once a step that may try tokens"
    assert drafter.pool.used == 0


def test_a_draft_model_and_prompt_lookup_are_not_asked_together() -> None:
    with pytest.raises(JoyError, match="not from both"):
        EngineOptions(prompt_lookup=3, draft_model="small")


def test_a_draft_model_of_other_words_is_refused() -> None:
    class Words:
        def __init__(self, first: int) -> None:
            self.hf = self
            self.first = first

        def get_vocab(self) -> dict[str, int]:
            return {f"w{i}": i + self.first for i in range(100)}

    options = EngineOptions(draft_model="small")
    same_words(Words(0), Words(0), options)  # type: ignore[arg-type]
    with pytest.raises(JoyError, match="100 of the model's 100 tokens have another id"):
        same_words(Words(0), Words(1), options)  # type: ignore[arg-type]


def test_blocks_found_again_hold_what_they_say(tmp_path: Path) -> None:
    """A block that a wrong draft was written into must not be found by its content."""
    save(tmp_path)
    engine = load_engine(tmp_path, EngineOptions(**ROOM, prompt_lookup=6)).engine
    plain = load_engine(tmp_path, EngineOptions(**{**ROOM, "prefix_cache": False})).engine
    asked = repeating(4)
    for round in range(3):
        for i, ids in enumerate(asked):
            for one in (engine, plain):
                one.add(Request(f"{round} {i}", tuple(ids), greedy(20)))
        found, want = drain(engine), drain(plain)
        made = {key: tokens(rows) for key, rows in found.items()}
        assert made == {key: tokens(rows) for key, rows in want.items()}
        asked = [ids + made[f"{round} {i}", 0] for i, ids in enumerate(asked)]
    assert engine.stats().prefix_hits > 0


def test_too_many_drafts_are_refused() -> None:
    with pytest.raises(JoyError, match="prompt_lookup is 33"):
        EngineOptions(prompt_lookup=33)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 9), st.integers(0, 99))
def test_a_draft_stood_behind_the_same_words(ids: list[int], most: int, seed: int) -> None:
    """However the text came, in pieces or at once, the draft is the newest continuation."""
    lookup, source, length = Lookup(), random.Random(seed), 0
    while length < len(ids):
        length = min(len(ids), length + source.randint(1, 9))
        found = lookup.draft(ids[:length], most)
    if not ids:
        return
    assert found == by_hand(ids, most)


def by_hand(ids: list[int], most: int) -> tuple[int, ...]:
    """The same, looked up the slow way."""
    for count in (3, 2):
        for end in range(len(ids) - 1, count - 1, -1):
            if len(ids) >= count and ids[end - count : end] == ids[-count:]:
                return tuple(ids[end : end + most])
    return ()
