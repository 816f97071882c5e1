"""Which streams may be continued, and how: an allow-list, no list of exceptions."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from joymigrate.run.serve.gateway.calls import CHAT, Call
from joymigrate.run.serve.gateway.resume import CONTENT, Diverged, Sent, continuations, obstacle
from joymigrate.run.serve.gateway.stream import Stream

BASE = {"model": "m", "messages": [], "stream": True, "temperature": 0, "max_tokens": 20}
SENT = Sent({}, {CONTENT: "a b"}, [5, 6], {0: [1, 2, 3]}, all_ids=[5, 6])
EXACT: list[dict[str, Any]] = [
    {}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"logit_bias": {"5": -3}}, {"seed": 3},
    {"ignore_eos": True}, {"stop_token_ids": [7]}, {"presence_penalty": 0}, {"stop": None},
    {"n": 1}, {"response_format": {"type": "text"}}, {"user": "x"}, {"tools": []},
]  # fmt: skip
NOT_KNOWN: list[dict[str, Any]] = [
    {"presence_penalty": 0.5}, {"frequency_penalty": 1}, {"repetition_penalty": 1.2},
    {"min_tokens": 5}, {"seed": 3, "temperature": 1}, {"stop": ["ab"]}, {"stop": "x"},
    {"truncate_prompt_tokens": 2}, {"guided_regex": "a+"}, {"guided_choice": ["a"]},
    {"guided_grammar": "x"}, {"guided_json": {}, }, {"structural_tag": {}},
    {"structured_outputs": {"regex": "a"}}, {"response_format": {"type": "json_object"}},
    {"tools": [{"type": "function"}]}, {"include_stop_str_in_output": True},
    {"a_field_of_next_year": 1}, {"bad_words": ["x"]}, {"allowed_token_ids": [1]},
]  # fmt: skip


def call() -> Call:
    return Call(CHAT, "POST", "/v1/chat/completions", {}, orjson.dumps(BASE), BASE, 0.0)


def ways(more: dict[str, Any]) -> list[str]:
    body = {**BASE, **more}
    call = Call(CHAT, "POST", "/v1/chat/completions", {}, orjson.dumps(body), body, 0.0)
    found = [way.way for way in continuations(call, SENT, resumes=True)]
    seeded = "seed" in body and body["temperature"]
    assert ("resume" in found) == (not seeded), "another kind of server draws differently"
    return [way for way in found if way != "resume"]


@pytest.mark.parametrize("more", EXACT, ids=str)
def test_fields_that_act_on_each_token_alone_go_on_behind_the_ids(more: dict[str, Any]) -> None:
    assert ways(more) == ["ids", "replay"]


@pytest.mark.parametrize("more", NOT_KNOWN, ids=str)
def test_every_other_field_is_asked_again_and_compared(more: dict[str, Any]) -> None:
    assert ways(more) == ["replay"]


def calling(*calls: tuple[str, str]) -> Stream:
    """A stream of tool calls that broke."""
    stream = Stream()
    for index, (name, arguments) in enumerate(calls):
        piece = {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": ""}}
        for one in (piece, {"index": index, "function": {"arguments": arguments}}):
            choice = {"index": 0, "delta": {"tool_calls": [one]}, "finish_reason": None}
            event = {"id": "one", "choices": [choice]}
            stream.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    return stream


def event_of(*pieces: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    delta = {"tool_calls": list(pieces)} if pieces else {}
    return {"id": "two", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_tool_calls_of_another_server_are_compared_and_go_on_where_they_stopped() -> None:
    stream = calling(("weigh", '{"a": 1}'), ("lift", '{"b"'))
    (way,) = continuations(call(), Sent.of(stream))
    opening = {"index": 0, "id": "new", "function": {"name": "weigh", "arguments": '{"a": 1}'}}
    assert way.convert(event_of(opening)) is None
    second = {"index": 1, "id": "other", "function": {"name": "lift", "arguments": '{"b": 2}'}}
    third = {"index": 2, "id": "third", "function": {"name": "drop", "arguments": ""}}
    assert way.convert(event_of(second, third)) == {
        **event_of({"index": 1, "function": {"arguments": ": 2}"}}, third), "id": "one",
    }  # fmt: skip
    assert way.convert(event_of(finish="tool_calls")) is not None


@pytest.mark.parametrize(
    "piece",
    [
        {"index": 0, "id": "x", "function": {"name": "weigh", "arguments": '{"b'}},
        {"index": 0, "id": "x", "function": {"name": "lift", "arguments": ""}},
    ],
)
def test_other_tool_calls_end_visibly(piece: dict[str, Any]) -> None:
    (way,) = continuations(call(), Sent.of(calling(("weigh", '{"a"'))))
    with pytest.raises(Diverged):
        way.convert(event_of(piece))


def test_calls_that_end_too_early_and_odd_ones_are_seen() -> None:
    (way,) = continuations(call(), Sent.of(calling(("weigh", '{"a"'))))
    with pytest.raises(Diverged):
        way.convert(event_of(finish="tool_calls"))
    (way,) = continuations(call(), Sent.of(calling(("now", ""))))
    with pytest.raises(Diverged):  # a call without arguments is missed, too
        way.convert(event_of(finish="stop"))
    (way,) = continuations(call(), Sent.of(calling(("now", ""))))
    with pytest.raises(Diverged):
        way.convert({"choices": [{"index": 0, "delta": {"content": "It is noon."}}]})
    odd = Stream()
    choice = {"index": 0, "delta": {"tool_calls": [{"function": {"name": "f"}}]}}
    odd.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    assert obstacle(call(), odd) is not None
