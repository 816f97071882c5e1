"""/v1/responses, called by the official client: the same answers as the chat API's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Running

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Köln"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
GREEDY = {"model": "tiny", "temperature": 0, "max_output_tokens": 12}


def test_the_text_is_that_of_the_chat(client: Any) -> None:
    made = client.responses.create(input="Hello", instructions="Be terse", **GREEDY)
    talk = [{"role": "system", "content": "Be terse"}, {"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create(model="tiny", temperature=0, max_tokens=12, messages=talk)
    assert made.output_text == chat.choices[0].message.content != ""
    assert made.usage.input_tokens == chat.usage.prompt_tokens
    assert made.usage.output_tokens == chat.usage.completion_tokens
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_stream_says_the_same_as_the_whole(client: Any) -> None:
    whole = client.responses.create(input="Hello", **GREEDY)
    with client.responses.stream(input="Hello", **GREEDY) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]  # fmt: skip
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.incomplete"]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    final = events[-1].response
    assert "".join(deltas) == whole.output_text == final.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_forced_call_is_an_item(client: Any, choice: Any) -> None:
    asked = {**GREEDY, "tools": [TOOL], "tool_choice": choice, "max_output_tokens": 60}
    made = client.responses.create(input="Where?", **asked)
    with client.responses.stream(input="Where?", **asked) as stream:
        events = list(stream)
    call = made.output[0]
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Paris", "Köln")
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    done = next(e for e in events if e.type == "response.function_call_arguments.done")
    assert "".join(deltas) == done.arguments == call.arguments
    assert events[-1].type == "response.completed"


def test_a_schema_is_enforced(client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "name": "number", "schema": schema, "strict": True}
    made = client.responses.create(
        input="Hello", text={"format": form}, **{**GREEDY, "max_output_tokens": 60}
    )
    assert json.loads(made.output_text)["a"] in (1, 2)
    assert made.text.format.name == "number"


def test_a_conversation_with_calls_reads_as_the_chat_does(server: Running) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        *({"type": "function_call", "call_id": f"c{i}", "name": "weather",
           "arguments": json.dumps({"city": city})} for i, city in ((1, "Paris"), (2, "Köln"))),
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": "rain"},
    ]  # fmt: skip
    calls = [
        {"id": f"c{i}", "type": "function",
         "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        for i, city in ((1, "Paris"), (2, "Köln"))
    ]  # fmt: skip
    talk = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
    ]
    made = json.loads(server.post("/v1/responses", {**GREEDY, "input": items})[2])
    asked = {"temperature": 0, "max_tokens": 12, "messages": talk}
    chat = json.loads(server.post("/v1/chat/completions", asked)[2])
    assert made["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert made["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_logprobs_come_where_they_are_included(client: Any) -> None:
    made = client.responses.create(
        input="Hello", include=["message.output_text.logprobs"], top_logprobs=2, **GREEDY
    )
    rows = made.output[0].content[0].logprobs
    assert len(rows) == made.usage.output_tokens
    assert all(len(row.top_logprobs) == 2 for row in rows)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0]"),
        ({"input": [{"role": "nobody", "content": "a"}]}, "input[0].role"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_tokens"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"messages": []}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_not_there_is_refused(server: Running, more: dict[str, Any], param: str) -> None:
    status, error = server.refused("/v1/responses", {**GREEDY, "input": "Hello", **more})
    assert (status, error["param"]) == (400, param)
