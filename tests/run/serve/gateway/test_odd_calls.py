"""Tool calls that no program could follow, in the streams and whole answers of each API: what both
backends say is no difference between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.reader import AnswerReader
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.gateway.whole_answers import oddity
from joymigrate.run.serve.web.apis import CHAT, MESSAGES, RESPONSES, ApiRoute
from tests.run.serve.gateway.conftest import Bench, Table, ramp
from tests.run.serve.gateway.fake import STREAM_HEAD, Fake, chunk, whole

USAGE = {"input_tokens": 3, "output_tokens": 2}
WEIGH = {"name": "weigh", "parameters": {"type": "object"}}
Event = Mapping[str, Any]


@dataclass(slots=True)
class Calling(Fake):
    """Answers every question with the same tool call."""

    told: tuple[dict[str, Any], list[Event]] = field(default_factory=lambda: ({}, []))

    async def post(self, writer: Any, path: str, body: dict[str, Any]) -> None:
        self.seen += 1
        answer, events = self.told
        if not body.get("stream"):
            await whole(writer, 200, answer)
            return
        writer.write(STREAM_HEAD)
        chunk(writer, sse(events, path))
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def sse(events: list[Event], path: str) -> bytes:
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return data + b"data: [DONE]\n\n" * ("chat" in path)


def chat(name: str, *, custom: bool = False, **said: str) -> tuple[dict[str, Any], list[Event]]:
    kind = "custom" if custom else "function"
    call = {"id": "c", "type": kind, kind: {"name": name, **said}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    head = {"id": "a", "object": "chat.completion", "created": 1, "model": "m"}
    delta = {"role": "assistant", "tool_calls": [{"index": 0, **call}]}
    return {**head, "choices": [choice]}, [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]


def responses(kind: str, name: str, **said: str) -> tuple[dict[str, Any], list[Event]]:
    item = {"type": kind, "id": "i", "call_id": "c", "name": name, "status": "completed", **said}
    answer = {"id": "r", "object": "response", "created_at": 1, "model": "m", "usage": USAGE,
              "status": "completed", "output": [item]}  # fmt: skip
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    return answer, [done, {"type": "response.completed", "response": answer}]


def messages(name: str, arguments: str) -> tuple[dict[str, Any], list[Event]]:
    block = {"type": "tool_use", "id": "c", "name": name, "input": {}}
    head = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
    answer = {**head, "content": [block], "stop_reason": "tool_use", "usage": USAGE}
    return answer, [
        {"type": "message_start", "message": {**head, "content": [], "usage": USAGE}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0,
         "delta": {"type": "input_json_delta", "partial_json": arguments}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": USAGE},
        {"type": "message_stop"},
    ]  # fmt: skip


CHAT_TOOLS = [{"type": "function", "function": WEIGH}]
RESPONSE_TOOL = {"type": "function", **WEIGH}
MCP = {"type": "mcp", "server_label": "shop", "server_url": "https://shop.example"}
CUSTOM = {"type": "custom", "name": "run"}
CHAT_CUSTOM = {"type": "custom", "custom": {"name": "run"}}
MESSAGE_TOOLS = [{"name": "weigh", "input_schema": {"type": "object"}}]
SOUND = chat("weigh", arguments="{}")
Case = tuple[ApiRoute, list[Any], tuple[dict[str, Any], list[Event]], str | None]
CASES: dict[str, Case] = {
    "chat": (CHAT, CHAT_TOOLS, SOUND, None),
    "chat not offered": (CHAT, CHAT_TOOLS, chat("wiegh", arguments="{}"), "not offered"),
    "chat cut": (CHAT, CHAT_TOOLS, chat("weigh", arguments='{"a": '), "no JSON"),
    "chat custom": (CHAT, [CHAT_CUSTOM, *CHAT_TOOLS],
                    chat("run", custom=True, input="print('tea')"), None),
    "chat custom not offered": (CHAT, [CHAT_CUSTOM],
                                chat("rnu", custom=True, input="tea"), "not offered"),
    "custom": (RESPONSES, [CUSTOM, RESPONSE_TOOL],
               responses("custom_tool_call", "run", input="print('tea')"), None),
    "custom not offered": (RESPONSES, [CUSTOM, RESPONSE_TOOL],
                           responses("custom_tool_call", "rnu", input="tea"), "not offered"),
    "mcp": (RESPONSES, [MCP, RESPONSE_TOOL],
            responses("mcp_call", "prices", arguments="{}", output="1"), None),
    "function not offered": (RESPONSES, [RESPONSE_TOOL],
                             responses("function_call", "wiegh", arguments="{}"), "not offered"),
    "messages": (MESSAGES, MESSAGE_TOOLS, messages("weigh", "{}"), None),
    "messages not offered": (MESSAGES, MESSAGE_TOOLS, messages("wiegh", "{}"), "not offered"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_streams_and_whole_answers_are_odd_alike(name: str) -> None:
    api, tools, (answer, events), odd = CASES[name]
    assert api.form is not None
    call = GatewayCall(api, "POST", api.paths[0], {}, b"", {"tools": tools}, started=0.0)
    stream = RelayedStream(api.form)
    stream.feed(sse(events, api.paths[0]))
    assert (stream.done, stream.tools) == (True, True)
    for read in (stream, AnswerReader.of(api.form.whole(answer))):
        found = oddity(read, call)
        assert (found is None) if odd is None else (odd in str(found))


async def ask(bench: Bench, api: ApiRoute, tools: list[Any], *, stream: bool) -> str:
    """One client's request; who answered."""
    asked = {"model": "m", "stream": stream, "tools": tools, "max_tokens": 50, "input": "q",
             "messages": [{"role": "user", "content": "q"}]}  # fmt: skip
    async with bench.session.post(bench.url + api.paths[0], json=asked) as reply:
        assert reply.status == 200
        await reply.read()
    while bench.gateway.shadow.running:
        await asyncio.sleep(0.001)
    return reply.headers["X-Joymigrate-Upstream"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_standby_that_calls_tools_as_the_primary_does_stays(
    table: Table, name: str, stream: bool
) -> None:
    api, tools, told, _ = CASES[name]

    async def scenario(bench: Bench) -> None:
        for _ in range(14):
            assert await ask(bench, api, tools, stream=stream) == "gpu"
        rollout = bench.gateway.rollout
        assert (rollout.state, bench.gateway.shadow.compared) == ("ramping", 14)
        assert not any(rollout.answers.against.values())

    table.run(scenario, gpu=Calling(told=told), npu=Calling(told=told),
              rollout=ramp(0.01, max_slowdown=0), shadow={"percent": 100})  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["chat not offered", "chat cut"])
def test_a_standby_that_alone_breaks_calls_is_rolled_back(
    table: Table, name: str, stream: bool
) -> None:
    api, tools, told, _ = CASES[name]

    async def scenario(bench: Bench) -> None:
        for _ in range(30):
            await ask(bench, api, tools, stream=stream)
        assert bench.gateway.rollout.state == "rolled_back"
        assert bench.gateway.rollout.answers.against["format"] > 0

    table.run(scenario, gpu=Calling(told=SOUND), npu=Calling(told=told),
              rollout=ramp(0.01, max_slowdown=0), shadow={"percent": 100})  # fmt: skip
