"""/v1/messages: the same answers as the chat API's, and as a judge of answers reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.web import forms

from .conftest import Running

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 12}
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Köln"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def ask(server: Running, **body: Any) -> dict[str, Any]:
    status, _, raw = server.post("/v1/messages", {**GREEDY, "messages": HELLO, **body})
    assert status == 200, raw
    found: dict[str, Any] = json.loads(raw)
    return found


def events(server: Running, **body: Any) -> tuple[list[dict[str, Any]], bytes]:
    asked = {**GREEDY, "messages": HELLO, "stream": True, **body}
    status, _, raw = server.post("/v1/messages", asked)
    assert status == 200, raw
    made = []
    for block in raw.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        made.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {made[-1]['type']}"
    return made, raw


def chat(server: Running, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.post("/v1/chat/completions", {**GREEDY, **body})[2])
    return found


def test_the_text_is_that_of_the_chat(server: Running) -> None:
    made = ask(server, system=[{"type": "text", "text": "Be terse"}])
    same = chat(server, messages=[{"role": "system", "content": "Be terse"}, *HELLO])
    assert made["content"] == [{"type": "text", "text": same["choices"][0]["message"]["content"]}]
    assert (made["type"], made["role"], made["model"]) == ("message", "assistant", "tiny")
    assert (made["stop_reason"], made["stop_sequence"]) == ("max_tokens", None)
    assert made["usage"] == {"input_tokens": same["usage"]["prompt_tokens"], "output_tokens": 12}


def test_a_stream_says_the_same_as_the_whole_and_is_judged_sound(server: Running) -> None:
    whole = ask(server)
    made, raw = events(server)
    kinds = [event["type"] for event in made]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(e["delta"]["text"] for e in made if e["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert made[-2]["delta"]["stop_reason"] == "max_tokens"
    assert made[-2]["usage"] == whole["usage"]
    stream = RelayedStream(forms.MESSAGES)
    assert stream.feed(raw) == raw
    assert (stream.end(), stream.done, stream.main.finish) == (None, True, "length")
    assert "".join(stream.pieces) == text


def test_a_stop_sequence_is_named(server: Running) -> None:
    text = ask(server)["content"][0]["text"]
    stop = text[3:5]
    made = ask(server, stop_sequences=[stop])
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", stop)
    assert stop not in made["content"][0]["text"]


@pytest.mark.parametrize(
    "choice",
    [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}],
)
def test_a_forced_call_is_a_block(server: Running, choice: Any) -> None:
    asked = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 200}
    made = ask(server, **asked)
    (block,) = made["content"]
    assert (block["type"], block["name"], made["stop_reason"]) == (
        "tool_use",
        "weather",
        "tool_use",
    )
    assert block["input"]["city"] in ("Paris", "Köln")
    streamed, _ = events(server, **asked)
    start = next(e for e in streamed if e["type"] == "content_block_start")
    assert (start["content_block"]["input"], start["content_block"]["name"]) == ({}, "weather")
    pieces = [e["delta"] for e in streamed if e["type"] == "content_block_delta"]
    assert {one["type"] for one in pieces} == {"input_json_delta"}
    assert json.loads("".join(one["partial_json"] for one in pieces)) == block["input"]


def test_a_conversation_with_calls_reads_as_the_chat_does(server: Running) -> None:
    used = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "a",
              "content": [{"type": "text", "text": "rain"}]}  # fmt: skip
    more = {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}
    made = ask(server, messages=[
        *HELLO,
        {"role": "assistant", "content": [{"type": "text", "text": "I look"}, used]},
        {"role": "user", "content": [result, more]},
    ])  # fmt: skip
    call = {"id": "a", "type": "function",
            "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}  # fmt: skip
    same = chat(server, messages=[
        *HELLO,
        {"role": "assistant", "content": "I look", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "user", "content": "And?"},
    ])  # fmt: skip
    assert made["content"][0]["text"] == same["choices"][0]["message"]["content"]


def test_tokens_are_counted_without_an_answer(server: Running) -> None:
    body = {"model": "tiny", "messages": HELLO}
    status, _, raw = server.post("/v1/messages/count_tokens", body)
    assert (status, json.loads(raw)) == (
        200,
        {"input_tokens": ask(server)["usage"]["input_tokens"]},
    )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"messages": []}, "messages is a list"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role is user or"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "not served: 'audio'"),
        ({"messages": [{"role": "user", "content": [7]}]}, "a string or a list of blocks"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "this server runs none"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking is not supported"),
        ({"temprature": 1}, "unknown field 'temprature'"),
    ],
)
def test_what_is_not_served_is_refused_in_the_words_of_this_api(
    server: Running, more: Any, says: str
) -> None:
    body = {**GREEDY, "messages": HELLO, **more}
    status, _, raw = server.post("/v1/messages", body)
    said = json.loads(raw)
    assert (status, said["type"], said["error"]["type"]) == (400, "error", "invalid_request_error")
    assert says in said["error"]["message"]
