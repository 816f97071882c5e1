"""Answers of another shape than the API's: never a crash, never words, never a success unseen."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.run.serve.evidence.failures import ERROR_OBJECT, INVALID_JSON, BackendFailure
from joymigrate.run.serve.gateway import whole_answers
from joymigrate.run.serve.gateway.backend import HttpAnswer, is_ping
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.pulse import Pulse
from joymigrate.run.serve.gateway.reader import AnswerReader
from joymigrate.run.serve.gateway.settings import GatewayLimits
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.web import forms
from joymigrate.run.serve.web.apis import CHAT, TEXT, ApiRoute
from tests.run.serve.gateway.conftest import Bench, Table, ramp
from tests.run.serve.gateway.fake import Fake
from tests.run.serve.gateway.fake import whole as send

USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


def call(kind: ApiRoute = CHAT, **body: Any) -> GatewayCall:
    path = "/v1/chat/completions" if kind == CHAT else "/v1/completions"
    return GatewayCall(kind, "POST", path, {}, b"", {"model": "m", **body}, 0.0)


def answer(kind: ApiRoute = CHAT) -> dict[str, Any]:
    said = {"message": {"role": "assistant", "content": "hi"}} if kind == CHAT else {"text": "hi"}
    return {"choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": dict(USAGE)}


def oddity(parsed: dict[str, Any], asked: GatewayCall) -> str | None:
    return whole_answers.oddity(AnswerReader.of(parsed), asked)


@pytest.mark.parametrize("kind", [CHAT, TEXT])
def test_a_usual_answer_is_not_odd(kind: str) -> None:
    assert oddity(answer(kind), call(kind)) is None
    assert oddity({**answer(kind), "usage": None}, call(kind)) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: a["choices"][0].update(message="hi"), "no message"),
        (lambda a: a["choices"][0]["message"].update(content=7), "content is a int"),
        (lambda a: a["choices"].append(a["choices"][0]), "more choices"),
        (lambda a: a.update(usage=[1]), "usage is a list"),
        (lambda a: a["usage"].update(completion_tokens="many"), "usage without counts"),
        (lambda a: a["usage"].update(prompt_tokens=-1), "usage without counts"),
    ],
)
def test_another_shape_is_named(change: Any, why: str) -> None:
    odd = answer()
    change(odd)
    assert oddity(odd, call()) == why


def test_fewer_answers_than_asked_for_and_another_api_are_odd() -> None:
    assert oddity(answer(), call(n=2)) == "fewer choices"
    assert oddity(answer(TEXT), call(TEXT, prompt=["a", "b"])) == "fewer choices"
    assert oddity(answer(), call(prompt=["a", "b"])) is None, "a chat has no prompts"
    assert oddity(answer(TEXT), call()) == "no message"
    assert oddity(answer(), call(TEXT)) == "no text"


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_server_that_gave_up_has_failed(reason: str) -> None:
    gave_up = answer()
    gave_up["choices"][0]["finish_reason"] = reason
    with pytest.raises(BackendFailure) as caught:
        whole_answers.judge(json.dumps(gave_up).encode(), call())
    assert caught.value.kind == ERROR_OBJECT
    stream = RelayedStream()
    event = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    assert stream.feed(sse(event)) == b""
    assert stream.failure == ERROR_OBJECT


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["choices", "message", "delta", "content", "index", "text", "usage",
                         "finish_reason", "tool_calls", "token_ids", "error"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
PLACES = (("choices",), ("usage",), ("choices", 0), ("choices", 0, "message"),
          ("choices", 0, "message", "content"), ("choices", 0, "finish_reason"),
          ("usage", "completion_tokens"), ("choices", 0, "index"))  # fmt: skip


@settings(max_examples=150)
@given(st.sampled_from(PLACES), anything)
def test_no_value_at_any_place_is_a_crash(place: tuple[Any, ...], value: Any) -> None:
    odd = copy.deepcopy(answer())
    here: Any = odd
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    try:
        read = whole_answers.judge(json.dumps(odd).encode(), call())
    except BackendFailure:
        pass
    else:
        whole_answers.oddity(read, call())
        assert all(count >= 0 for count in read.usage_so_far())
        assert isinstance(read.words, str)
        assert read.spoke in (True, False)
    event = json.loads(json.dumps(odd).replace('"message"', '"delta"'))
    stream = RelayedStream(CHAT.form, most=1)
    stream.feed(sse({"choices": [{"index": 0, "delta": {"content": "a"}}]}) + sse(event))
    stream.end()
    assert isinstance("".join(stream.pieces), str)
    assert stream.tokens >= 0


def sse(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def test_words_count_in_the_field_of_their_api_alone() -> None:
    completion = sse({"choices": [{"index": 0, "text": "hi"}]})
    chat = sse({"choices": [{"index": 0, "delta": {"content": "hi"}}]})
    for event, kind, spoke in (
        (completion, forms.TEXT, True), (completion, forms.CHAT, False), (chat, forms.CHAT, True),
        (chat, forms.TEXT, False), (completion, forms.EITHER, True), (chat, forms.EITHER, True),
    ):  # fmt: skip
        stream = RelayedStream(kind)
        stream.feed(event * 2)
        assert stream.spoke == spoke


def test_a_choice_that_was_not_asked_for_breaks_a_stream() -> None:
    second = sse({"choices": [{"index": 1, "delta": {"content": "hi"}}]})
    stream = RelayedStream(most=1)
    assert stream.feed(second) == b""
    assert stream.failure == INVALID_JSON
    assert RelayedStream(most=2).feed(second) == second


@pytest.mark.parametrize("finish", ["abort", 5])
def test_of_an_event_that_is_not_relayed_nothing_is_noted(finish: Any) -> None:
    """What a client did not get must not be skipped when another server goes on."""
    stream = RelayedStream(keep=True)
    call = {"index": 0, "function": {"name": "f", "arguments": "{"}}
    delta = {"reasoning": "so", "tool_calls": [call]}
    good = {"index": 1, "delta": {"content": "hi"}}
    bad = {"index": 0, "delta": delta, "token_ids": [7], "finish_reason": finish}
    assert stream.feed(sse({"choices": [good, bad]})) == b""
    assert stream.failure == (ERROR_OBJECT if finish == "abort" else INVALID_JSON)
    assert not stream.said
    assert not stream.main.ids
    assert stream.first is None
    assert stream.events == [], "nobody passes it on"


def test_nothing_follows_the_end_of_a_stream() -> None:
    good = sse({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    whole_stream = good + b"data: [DONE]\n\n"
    assert RelayedStream().feed(whole_stream + good) == whole_stream


class Pinging:
    """A response of comments, and a clock."""

    status, headers, connection = 200, {}, None

    def __init__(self) -> None:
        self.content = self

    async def readany(self) -> bytes:
        return b": ping\n\n"


def test_comments_alone_do_not_keep_a_stream_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("joymigrate.run.serve.gateway.backend.time.perf_counter", lambda: now[0])
    reading = HttpAnswer(Pinging(), GatewayLimits(first_byte_seconds=20, idle_seconds=10), Pulse())

    async def read(at: float) -> None:
        now[0] = at
        await reading.read()

    async def whole_story() -> None:
        await read(0.0)
        await read(19.0)
        with pytest.raises(BackendFailure, match="first_byte"):
            await read(21.0)
        reading.begun, reading.pinged = True, None
        await read(30.0)
        with pytest.raises(BackendFailure, match="idle"):
            await read(41.0)

    asyncio.run(whole_story())
    assert is_ping(b": ping\n\n")
    assert not is_ping(b": ping\n\ndata: {}\n\n")


class Swapped(Fake):
    """Answers chats in the shape of completions."""

    async def whole(self, writer: Any, path: str, events: Any, kind: str | None) -> None:
        await send(writer, 200, answer(TEXT))


def test_an_odd_standby_fails_and_an_odd_primary_is_taken_as_it_is(table: Table) -> None:
    async def standby(bench: Bench) -> None:
        for number in range(8):
            found = await bench.ask(f"{number}", stream=False)
            assert found.text == bench.expected(f"{number}")
        assert bench.gateway.rollout.state == "rolled_back"
        assert bench.gateway.rollout.last_kinds == {"odd_answer": 3}

    table.run(standby, npu=Swapped(tokens=3), rollout=ramp(100))

    async def primary(bench: Bench) -> None:
        asked = {"messages": [{"role": "user", "content": "q"}], "model": "m"}
        url = bench.url + "/v1/chat/completions"
        async with bench.session.post(url, json=asked) as reply:
            assert (reply.status, await reply.json()) == (200, answer(TEXT))
        assert bench.gateway.rollout.primary.failures == 0

    table.run(primary, gpu=Swapped(tokens=3), rollout={"start": "manual"})


class Packing(Fake):
    """Compresses, though nobody asked for it."""

    async def whole(self, writer: Any, path: str, events: Any, kind: str | None) -> None:
        packed = gzip.compress(json.dumps(answer()).encode())
        head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(packed) + packed)
        await writer.drain()


def test_a_primary_that_compresses_cannot_be_compared_and_is_not_accused(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(6):
            assert (await bench.ask(f"{number}", stream=False, temperature=0)).upstream == "npu"
            while bench.gateway.shadow.running:
                await asyncio.sleep(0.001)
        rollout = bench.gateway.rollout
        assert bench.gpu.seen == 6, "each was asked again"
        assert (rollout.primary.failures, rollout.total.failures, rollout.step_pairs) == (0, 0, 0)

    table.run(scenario, gpu=Packing(), rollout=ramp(100, min_step_pairs=10))
