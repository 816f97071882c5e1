"""Layers that keep states (Mamba, delta rules, convolutions): each text has its own, whatever is
computed together, in pieces, again after a preemption, or after a failure."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate import chips
from joymigrate.errors import JoyError
from joymigrate.run.serve.engine import EngineOptions, Request, recover
from joymigrate.run.serve.engine.asynchronous import AsyncEngine
from joymigrate.run.serve.engine.beams import BeamOptions, search
from joymigrate.run.serve.engine.core import may_draft
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.memory import plan
from joymigrate.run.serve.engine.models import layer_plan
from joymigrate.run.serve.engine.models.spec import read_config
from joymigrate.run.serve.engine.models.states import recall
from joymigrate.run.serve.engine.preflight import StartRequest
from joymigrate.run.serve.engine.scheduler import Chunk, SequenceScheduler
from joymigrate.run.serve.engine.sequence import Sequence
from joymigrate.run.serve.engine.tiny_models import document, tiny
from joymigrate.run.serve.engine.types import Resume, Sampling
from tests.run.serve.engine.models import drain, expected, greedy, prompts, tokens

COUNT = 8
TIGHT = EngineOptions(
    dtype="float32", block_size=4, kv_blocks=24, max_batch_tokens=7, max_model_len=60,
    max_running=6,
)  # fmt: skip


@pytest.fixture(scope="module", params=["mamba2", "jamba", "qwen3_next", "lfm2"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, list[tuple[list[int], list[int]]]]:
    """The folder, the model, and prompts with what transformers appends."""
    folder = tmp_path_factory.mktemp("states")
    made = tiny(request.param, document()["families"][request.param]["config"], folder)
    asked = prompts((1, 30, 6, 17, 3))
    return folder, made, [(ids, expected(made, ids, COUNT)) for ids in asked]


def ask(engine: Any, ids: list[int], name: str, **more: Any) -> None:
    engine.add(Request(name, tuple(ids), greedy(COUNT, ignore_eos=True), **more))


@pytest.mark.dear
def test_texts_in_pieces_together_and_preempted(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, asked = model
    engine = load_engine(folder, TIGHT).engine
    preempted = []
    scheduler = engine.scheduler
    real = SequenceScheduler.preempt

    def preempt(self: SequenceScheduler, sequence: Sequence) -> None:
        preempted.append(sequence)
        real(self, sequence)

    monkeypatch.setattr(SequenceScheduler, "preempt", preempt)
    for attempt in range(2):
        for i, (ids, _) in enumerate(asked):
            ask(engine, ids, f"{attempt}-{i}")
        steps = 0
        found: dict[Any, Any] = {}
        while not engine.idle:
            for output in engine.step():
                found.setdefault((output.request_id, output.index), []).append(output)
            steps += 1
            if steps in (4, 9):  # somebody starts over in the middle
                scheduler.preempt(next(iter(scheduler.running)))
        for i, (_, want) in enumerate(asked):
            assert tokens(found[f"{attempt}-{i}", 0]) == want
    assert len(preempted) >= 4
    assert all(not sequence.kept or sequence.computed for sequence in preempted)
    assert len(engine.pool.states) <= TIGHT.max_running
    assert engine.stats().blocks_used == 0


@pytest.mark.dear
@pytest.mark.parametrize("most", [2, 64])
def test_a_prefix_is_found_where_its_states_are_kept(model: Any, most: int) -> None:
    folder, made, asked = model
    room = replace(TIGHT, kv_blocks=64, max_batch_tokens=64, max_running=most)
    engine = load_engine(folder, room).engine
    for attempt in range(2):
        for i, (ids, want) in enumerate(asked):
            ask(engine, ids, f"{attempt}-{i}")
            assert tokens(drain(engine)[f"{attempt}-{i}", 0]) == want
    # of 30, 6 and 17 tokens 28, 4 and 16 lie in full blocks, if their states were not dropped
    assert engine.stats().prefix_hits == (48 if most == 64 else 0)
    ids, want = asked[1]
    engine.pool.states.clear()
    longer = [*ids, *want]  # a conversation goes on behind an answer
    ask(engine, longer, "states are gone")
    other = [*longer[:-1], (longer[-1] + 1) % 50, *ids[:8]]
    ask(engine, other, "another end")
    found = drain(engine)
    assert tokens(found["states are gone", 0]) == expected(made, longer, COUNT)
    assert tokens(found["another end", 0]) == expected(made, other, COUNT)
    held = engine.pool.count - len(engine.pool.free)
    engine.pool.clear()
    assert held == len(engine.pool.states) == 0


@pytest.mark.dear
def test_beams_compute_at_most_a_block_anew(model: Any) -> None:
    folder, made, asked = model
    ids = asked[1][0]
    engine = AsyncEngine.load(folder, replace(TIGHT, kv_blocks=96, max_batch_tokens=64))
    widths: list[int] = []
    real = engine.engine.forward

    def forward(batch: Any) -> Any:
        widths.extend(chunk.width for chunk in batch.chunks)
        return real(batch)

    engine.engine.forward = forward
    try:
        sampling = Sampling(max_tokens=COUNT, ignore_eos=True, n=3)
        ours = asyncio.run(search(engine, Request("b", tuple(ids), sampling), BeamOptions(3)))
    finally:
        engine.stop()
    want = made.generate(
        torch.tensor([ids]), num_beams=3, num_return_sequences=3, max_new_tokens=COUNT,
        do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert [list(one.ids) for one in ours] == want[:, len(ids) :].tolist()
    assert widths[:2] == [28, 2]  # to the last full block, and behind it
    assert max(widths[2:]) <= TIGHT.block_size


def test_choices_and_resumed_texts(model: Any) -> None:
    folder, _, asked = model
    engine = load_engine(folder, TIGHT).engine
    ids, want = asked[1]
    two = replace(greedy(COUNT, ignore_eos=True), n=2)
    engine.add(Request("n", tuple(ids), two))
    engine.add(Request("r", tuple(ids), two, resume=(Resume(tuple(want[:5])), None)))
    found = drain(engine)
    assert tokens(found["n", 0]) == tokens(found["n", 1]) == tokens(found["r", 1]) == want
    assert want[:5] + tokens(found["r", 0]) == want


@pytest.mark.dear
def test_a_pass_that_fails_in_the_middle_changes_no_state(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "PATIENCE_SECONDS", (0.0, 0.0))
    folder, _, asked = model
    engine = load_engine(folder, TIGHT).engine
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:  # behind all layers, before their states are kept
            raise RuntimeError("a fault of the test")

    engine.model.model.get_output_embeddings().register_forward_pre_hook(fail)
    for i, (ids, _) in enumerate(asked):
        ask(engine, ids, str(i))
    found = drain(engine)
    for i, (_, want) in enumerate(asked):
        assert tokens(found[str(i), 0]) == want
    assert engine.stats().failures > 3


@pytest.mark.dear
def test_what_cannot_be_right_is_off_or_refused(model: Any) -> None:
    folder, _, _ = model
    loaded = load_engine(folder, replace(TIGHT, prompt_lookup=3))
    assert not loaded.engine.scheduler.drafts
    assert not may_draft(loaded.engine.model)
    assert any("bytes of states a text" in note for note in loaded.info.notes)
    assert any("no prompt lookup" in note for note in loaded.info.notes)
    with pytest.raises(JoyError, match="keep a state"):
        load_engine(folder, replace(TIGHT, draft_model=str(folder), draft_tokens=2))
    lost = Sequence("", [1, 2, 3], 3, 3)
    with pytest.raises(JoyError, match="before its token 2 are not there"):
        recall([Chunk(lost, 2, 1)])


@pytest.mark.dear
def test_the_preflight_counts_the_states_that_the_engine_keeps(model: Any) -> None:
    folder, _, _ = model
    loaded = load_engine(folder, TIGHT).engine.model
    chip = chips.target("ascend")
    wanted = StartRequest(folder, TIGHT, chip, "910B3")
    memory, told = plan(wanted, read_config(folder))
    assert memory.state_per_text == loaded.state_bytes > 0
    assert memory.kv_per_token == 4 * sum(shape.numbers for shape in loaded.shapes)
    assert memory.states == 3 * TIGHT.max_running * loaded.state_bytes
    assert [one.status for one in told] == ["ok"]
    many = replace(TIGHT, kv_blocks=None, max_running=64 << 20)  # more states than the card has
    _, told = plan(replace(wanted, options=many), read_config(folder))
    assert told[-1].status == "fail"
    assert "--max-running" in told[-1].remedy
    assert "--tensor-parallel" not in told[-1].remedy  # the engine refuses it for such models


def test_states_that_cannot_be_counted_are_a_warning(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = model

    def refuse(*_: Any) -> None:
        raise ValueError("needs a kernel")

    monkeypatch.setattr(layer_plan, "count", refuse)
    _, told = plan(StartRequest(folder, TIGHT), read_config(folder))
    assert told[0].status == "warn"
    assert "could not be counted (ValueError: needs a kernel)" in told[0].found
