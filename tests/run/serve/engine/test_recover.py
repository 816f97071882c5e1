"""Forward passes that fail: only what is at fault ends, nothing leaks, and an engine that is lost
says so."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from joymigrate.run.serve.engine import AsyncEngine, EngineOptions, Request, Sampling, recover
from joymigrate.run.serve.engine.core import Engine
from joymigrate.run.serve.engine.faults import of_device, says_lost, short_of_memory
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import Lost
from tests.run.serve.engine.models import drain, expected, greedy, prompts, run, save, tokens

OPTIONS = EngineOptions(block_size=4, kv_blocks=120, max_batch_tokens=64, max_running=8, threads=1)
POISON = 96
COUNT = 8
Fault = Callable[[torch.Tensor], BaseException | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recover")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return save(folder)


@pytest.fixture
def engine(folder: Path, reference: Any) -> Engine:
    return load_engine(folder, OPTIONS).engine


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "PATIENCE_SECONDS", (0.0, 0.0))


def clean(count: int, lengths: tuple[int, ...] = (3, 40, 17, 5, 9)) -> list[list[int]]:
    """Prompts without the poisoned token."""
    return [[t % POISON for t in ids] for ids in prompts(lengths[:count], seed=4)]


def break_at(engine: Engine, fault: Fault) -> list[int]:
    """Have the model raise what `fault` says of a step's tokens; the list fills with step sizes."""
    sizes: list[int] = []
    hidden = engine.model.hidden

    def failing(batch: Any, cache: Any) -> torch.Tensor:
        sizes.append(len(batch.ids))
        states = hidden(
            batch, cache
        )  # keys and values are written, as by a real failure at the end
        error = fault(batch.ids)
        if error is not None:
            raise error
        return states

    engine.model.hidden = failing  # type: ignore[method-assign]
    return sizes


def out_of_memory(most: int) -> Fault:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return lambda ids: error if len(ids) > most else None


def poisoned(ids: torch.Tensor) -> BaseException | None:
    return RuntimeError("shape mismatch") if (ids == POISON).any() else None


@pytest.mark.parametrize("most", [1, 2, 5, 30])
def test_a_step_too_large_for_memory_is_computed_in_parts(
    engine: Engine, reference: Any, most: int
) -> None:
    break_at(engine, out_of_memory(most))
    asked = clean(5)
    assert run(engine, asked, greedy(COUNT)) == [expected(reference, ids, COUNT) for ids in asked]
    assert engine.stats().failures
    assert engine.stats().blocks_used == 0
    assert "error" not in engine.finished


def test_after_a_shortage_steps_are_smaller_and_grow_again(
    engine: Engine, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "CALM_STEPS", 20)
    sizes = break_at(engine, out_of_memory(16))
    (ids,) = clean(1, (200,))
    want = expected(reference, ids, 40)
    assert run(engine, [ids], greedy(40)) == [want]
    assert sizes[:4] == [64, 32, 16, 16]
    assert all(size <= 16 for size in sizes[4:]), "a prompt does not fail in every step"
    engine.model.hidden = type(engine.model).hidden.__get__(engine.model)  # type: ignore[method-assign]
    run(engine, clean(1), greedy(80))
    assert engine.scheduler.max_batch_tokens == 64


def test_what_a_failed_step_held_is_free_when_it_is_computed_again(
    engine: Engine, reference: Any
) -> None:
    hidden = engine.model.hidden
    held: list[Any] = []

    def failing(batch: Any, cache: Any) -> torch.Tensor:
        activations = torch.zeros(8)
        alive = [one() is not None for one in held]
        held.append(weakref.ref(activations))
        assert not any(alive)
        if len(batch.ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hidden(batch, cache)

    engine.model.hidden = failing  # type: ignore[method-assign]
    asked = clean(5)
    assert run(engine, asked, greedy(COUNT)) == [expected(reference, ids, COUNT) for ids in asked]


def test_only_the_text_at_fault_ends(engine: Engine, reference: Any) -> None:
    break_at(engine, poisoned)
    asked = clean(5)
    for number, ids in enumerate(asked):
        engine.add(Request(str(number), tuple(ids), greedy(COUNT)))
    engine.add(Request("bad", (5, POISON, 7), greedy(COUNT)))
    found = drain(engine)
    (bad,) = found["bad", 0]
    assert bad.finish_reason == "error"
    assert "the model failed at this text: RuntimeError: shape mismatch" in str(bad.error)
    for number, ids in enumerate(asked):
        assert tokens(found[str(number), 0]) == expected(reference, ids, COUNT)
    assert engine.stats().blocks_used == 0
    assert engine.finished == {"length": 5, "error": 1}


@pytest.mark.parametrize("count", [1, 5])
def test_a_failure_that_does_not_repeat_costs_nobody_anything(
    engine: Engine, reference: Any, count: int
) -> None:
    calls = iter(range(10**6))
    chosen = (1, 4, 5, 12)
    break_at(engine, lambda ids: RuntimeError("hiccup") if next(calls) in chosen else None)
    asked = clean(count)
    assert run(engine, asked, greedy(COUNT)) == [expected(reference, ids, COUNT) for ids in asked]
    assert engine.stats().failures >= 2


def test_the_modules_of_transformers_may_fail_as_well(folder: Path, reference: Any) -> None:
    options = EngineOptions(block_size=4, kv_blocks=120, generic=True, threads=1)
    engine = load_engine(folder, options).engine
    layer: Any = engine.model.model.model.layers[1].mlp  # type: ignore[attr-defined]
    assert isinstance(layer, torch.nn.Module)

    def hook(module: Any, given: Any) -> None:
        if given[0].shape[-2] > 9:
            raise torch.OutOfMemoryError("NPU out of memory. Tried to allocate 1.00 GiB")

    layer.register_forward_pre_hook(hook)
    asked = clean(5)
    assert run(engine, asked, greedy(COUNT)) == [expected(reference, ids, COUNT) for ids in asked]
    assert engine.stats().failures
    assert engine.stats().blocks_used == 0


def test_memory_that_fails_in_the_sampler_is_a_shortage_too(engine: Engine, reference: Any) -> None:
    logits = engine.model.logits

    def failing(hidden: torch.Tensor) -> torch.Tensor:
        if len(hidden) > 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return logits(hidden)

    engine.model.logits = failing  # type: ignore[method-assign]
    asked = clean(5)
    assert run(engine, asked, greedy(COUNT)) == [expected(reference, ids, COUNT) for ids in asked]


def test_scores_of_a_prompt_are_the_same_in_parts(folder: Path, engine: Engine) -> None:
    plain = load_engine(folder, OPTIONS).engine
    (ids,) = clean(1, (50,))
    sampling = greedy(4, prompt_logprobs=2, logprobs=2)
    found = []
    break_at(engine, out_of_memory(7))
    for one in (plain, engine):
        one.add(Request("a", tuple(ids), sampling))
        outputs = drain(one)["a", 0]
        assert outputs[0].prompt_logprobs is not None
        found.append([
            *outputs[0].prompt_logprobs[1:], *(p for o in outputs for p in o.logprobs or ())
        ])  # fmt: skip
    assert [row.id for row in found[0]] == [row.id for row in found[1]]
    assert [row.logprob for row in found[0]] == pytest.approx(
        [r.logprob for r in found[1]], abs=1e-4
    )


def test_an_engine_whose_spare_pass_fails_is_lost(engine: Engine) -> None:
    sizes = break_at(engine, lambda ids: RuntimeError("anything"))
    engine.add(Request("a", (1, 2, 3), greedy(3)))
    engine.add(Request("b", (1, 2, 3), greedy(3)))
    with pytest.raises(Lost, match="RuntimeError: anything"):
        engine.step()
    assert sizes == [6, 3, 3, 3]  # both, the first, made-up tokens twice


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: device-side assert triggered",
        "NPU function error: FORCE STOP.",
        "HBM MULTI BIT ECC ERROR",
    ],
)
def test_an_error_that_says_that_the_device_is_gone_ends_the_engine_at_once(
    engine: Engine, said: str
) -> None:
    sizes = break_at(engine, lambda ids: RuntimeError(said))
    engine.add(Request("a", (1, 2, 3), greedy(3)))
    with pytest.raises(Lost):
        engine.step()
    assert sizes == [3]


def test_memory_that_never_comes_back_ends_the_engine(engine: Engine) -> None:
    freed: list[int] = []
    engine.recovery.free = lambda: freed.append(1)
    break_at(engine, out_of_memory(0))
    engine.add(Request("a", (1, 2, 3), greedy(3)))
    with pytest.raises(Lost, match="out of memory"):
        engine.step()
    assert len(freed) >= 3


def test_texts_that_fail_one_after_another_end_the_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "IN_A_ROW", 5)
    break_at(engine, poisoned)
    for number in range(4):
        engine.add(Request(str(number), (POISON,), greedy(1)))
        assert drain(engine)[str(number), 0][-1].finish_reason == "error"
    engine.add(Request("good", (1,), greedy(1)))
    assert drain(engine)["good", 0][-1].finish_reason == "length"  # counts anew
    for number in range(4):
        engine.add(Request(str(number), (POISON,), greedy(1)))
        drain(engine)
    engine.add(Request("last", (POISON,), greedy(1)))
    with pytest.raises(Lost, match="5 texts in a row failed"):
        engine.step()


def test_processes_that_compute_together_do_not_try_again(folder: Path, reference: Any) -> None:
    engine = load_engine(folder, OPTIONS).engine
    engine.recovery.may_retry = False
    break_at(engine, out_of_memory(2))
    engine.add(Request("a", (1, 2, 3), greedy(3)))
    with pytest.raises(Lost):
        engine.step()


def test_embeddings_fail_alone_and_free_their_blocks(engine: Engine) -> None:
    break_at(engine, poisoned)
    for name, ids in (("good", (1, 2, 3)), ("bad", (1, POISON, 3)), ("left", (4, 5, 6))):
        engine.add(Request(name, ids, Sampling(max_tokens=0), pooling="mean"))
    engine.abort("left")
    found = drain(engine)
    assert len(found["good", 0][-1].vector or []) == 64
    assert "shape mismatch" in str(found["bad", 0][-1].error)
    assert engine.stats().blocks_used == 0


def test_errors_are_told_apart() -> None:
    assert short_of_memory(torch.OutOfMemoryError("x"))
    assert short_of_memory(MemoryError())
    assert short_of_memory(RuntimeError("NPU out of memory. Tried to allocate 2 GiB"))
    assert not short_of_memory(ValueError("out of memory"))
    assert says_lost(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert says_lost(RuntimeError("NPU function error: DEVICE TASK ABORT, error code is 107022"))
    assert not of_device(RuntimeError("The size of tensor a (3) must match"))


def test_a_lost_engine_tells_everybody_and_whoever_watches(folder: Path, reference: Any) -> None:
    engine = AsyncEngine.load(folder, OPTIONS)
    break_at(engine.engine, lambda ids: RuntimeError("CUDA error: device lost"))

    async def ask(name: str) -> Any:
        return [o async for o in engine.generate(Request(name, (1, 2), Sampling(max_tokens=4)))]

    async def main() -> list[Any]:
        watch = asyncio.ensure_future(engine.until_failed())
        found = await asyncio.gather(ask("a"), ask("b"), return_exceptions=True)
        found.append(await asyncio.wait_for(watch, 10))
        found.append(await asyncio.wait_for(engine.until_failed(), 10))  # also who comes late
        return found

    *asked, seen, late = asyncio.run(main())
    assert all(isinstance(error, Lost) for error in asked)
    assert isinstance(seen, Lost)
    assert late is seen
    engine.stop()


def test_who_asks_during_the_last_step_of_an_engine_is_told(folder: Path) -> None:
    engine = AsyncEngine.load(folder, OPTIONS)
    stepping, asked = threading.Event(), threading.Event()

    def step() -> Any:
        stepping.set()
        asked.wait(10)
        raise Lost("the device is gone")

    engine.engine.step = step  # type: ignore[method-assign]

    async def ask(name: str) -> Any:
        return [o async for o in engine.generate(Request(name, (1, 2), Sampling(max_tokens=4)))]

    async def main() -> list[Any]:
        first = asyncio.ensure_future(ask("first"))
        await asyncio.to_thread(stepping.wait, 10)
        late = asyncio.ensure_future(ask("late"))
        await asyncio.sleep(0)  # it is in the inbox of a step that will not end well
        assert engine.inbox
        asked.set()
        both = asyncio.gather(first, late, return_exceptions=True)
        return await asyncio.wait_for(both, 10)

    assert [str(error) for error in asyncio.run(main())] == [
        "the engine failed: the device is gone"
    ] * 2
    engine.stop()


class Machine(RuleBasedStateMachine):
    """Texts come and go while passes fail in every way; a finished text has its right tokens, and
    every block is held by who says so."""

    fresh: Callable[[], Engine]  # no case may know what another left: cached blocks, budgets
    want: Callable[[tuple[int, ...]], list[int]]

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.fresh()
        self.fault: Fault = lambda ids: None
        self.calls = 0
        self.asked: dict[str, tuple[int, ...]] = {}
        self.made: dict[str, list[int]] = {}
        self.number = 0
        self.engine.model.hidden = self.hidden  # type: ignore[method-assign]

    def hidden(self, batch: Any, cache: Any) -> torch.Tensor:
        states = type(self.engine.model).hidden(self.engine.model, batch, cache)
        self.calls += 1
        if (error := self.fault(batch.ids) or poisoned(batch.ids)) is not None:
            raise error
        return states

    @rule(length=st.integers(1, 40), seed=st.integers(0, 3), bad=st.booleans(), n=st.integers(1, 2))
    def add(self, length: int, seed: int, bad: bool, n: int) -> None:
        ids = [t % POISON for t in prompts([length], seed=seed)[0]]
        if bad:
            ids[length // 2] = POISON
        name = str(self.number)
        self.number += 1
        self.engine.add(Request(name, tuple(ids), greedy(COUNT, n=n)))
        self.asked[name] = tuple(ids)
        self.made.update({f"{name}/{index}": [] for index in range(n)})

    @rule(most=st.integers(1, 30), every=st.integers(2, 6), kind=st.integers(0, 2))
    def fail(self, most: int, every: int, kind: int) -> None:
        hiccup = RuntimeError("hiccup")
        faults: list[Fault] = [
            lambda ids: None,
            out_of_memory(most),
            lambda ids: hiccup if self.calls % every == 0 else None,
        ]
        self.fault = faults[kind]

    @precondition(lambda self: not self.engine.idle)
    @rule()
    def step(self) -> None:
        for output in self.engine.step():
            name = f"{output.request_id}/{output.index}"
            self.made[name] += output.new_ids
            ids = self.asked[output.request_id]
            if output.finish_reason == "length":
                assert self.made[name] == self.want(ids)
            if output.finish_reason == "error" and "hiccup" not in str(output.error):
                assert POISON in ids or POISON in self.made[name]

    @precondition(lambda self: self.engine.texts)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(sorted(self.engine.texts))))

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        held = [0] * self.engine.pool.count
        for texts in self.engine.texts.values():
            for text in texts:
                for block in text.sequence.blocks:
                    held[block] += 1
        assert held == self.engine.pool.references

    def teardown(self) -> None:
        self.fault = lambda ids: None
        while not self.engine.idle:
            self.step()
        assert self.engine.pool.used == 0
        assert not self.engine.texts


@pytest.mark.dear
def test_whatever_fails_tokens_stay_right_and_blocks_are_freed(
    folder: Path, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover, "IN_A_ROW", 10**6)  # so many poisoned texts come here
    known: dict[tuple[int, ...], list[int]] = {}

    def want(ids: tuple[int, ...]) -> list[int]:
        if ids not in known:
            known[ids] = expected(reference, list(ids), COUNT)
        return known[ids]

    Machine.fresh = staticmethod(lambda: load_engine(folder, OPTIONS).engine)
    Machine.want = staticmethod(want)
    case = Machine.TestCase
    case.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
    case("runTest").runTest()
