"""Answers POST /v1/messages: content blocks out of a chat's words and calls, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import orjson

from joymigrate.run.serve.engine.http import chat, slow_reads, streaming
from joymigrate.run.serve.engine.http.anthropic.message_request import CALLED, chat_of
from joymigrate.run.serve.engine.http.chat import ChatAnswer, ChatRequest
from joymigrate.run.serve.engine.http.generation import HttpGeneration
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.engine.types import EngineOutput
from joymigrate.run.serve.web import errors
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Ask, Reply, data, dumps

# A block that begins, and what a piece of it is called.
BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "tool_use": {"type": "tool_use"},
}
PIECES = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
          "tool_use": ("input_json_delta", "partial_json")}  # fmt: skip


async def answer(service: EngineService, ask: Ask) -> Reply:
    """Answer POST /v1/messages."""
    body = ask.json()
    return await streaming.answer(
        service, ask, lambda: chat.read_as(service, chat_of(body), CALLED), Message, word_failure
    )


async def count(service: EngineService, ask: Ask) -> Reply:
    """POST /v1/messages/count_tokens: the length of the prompt."""
    body = {"max_tokens": 1, **ask.json()}
    asked, _ = await slow_reads.read(ask, lambda: chat.read_as(service, chat_of(body), CALLED))
    return data({"input_tokens": len(asked.prompt)})


def word_failure(refusal: HttpRefusal) -> bytes:
    """The event that ends a stream which failed."""
    return b"event: error\ndata: " + dumps(errors.anthropic(refusal)) + b"\n\n"


class Message:
    """One answer in the making: its blocks, of which the last one is open."""

    def __init__(
        self, service: EngineService, ask: Ask, asked: ChatRequest, generation: HttpGeneration
    ) -> None:
        self.asked, self.generation = asked, generation
        self.chat = ChatAnswer(service, ask, asked, generation)
        self.blocks: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {
            "id": f"msg_{ask.id}", "type": "message", "role": "assistant", "model": asked.model,
            "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": len(asked.prompt), "output_tokens": 0},
        }  # fmt: skip

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        ending: dict[str, Any] = {}
        async for _, last in self.run():
            ending = last or ending
        for block in self.blocks:
            if block["type"] == "tool_use":
                block["input"] = parse_arguments(block["input"])
        return {**self.head, "content": self.blocks, **ending, "usage": self.usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as events."""
        yield event("message_start", message=self.head)
        ending: dict[str, Any] = {}
        async for made, last in self.run():
            ending = last or ending
            if made:
                yield made
        yield event("message_delta", delta=ending, usage=self.usage())
        yield event("message_stop")

    async def run(self) -> AsyncGenerator[tuple[bytes, dict[str, Any] | None], None]:
        """(events, why the text ended) of each output; raises `HttpRefusal` for a broken text."""
        async with aclosing(self.generation.outputs()) as outputs:
            async for _, output in outputs:
                made = b"".join(self.grow(output))
                if not output.finish_reason:
                    yield made, None
                    continue
                if output.finish_reason == "error":
                    raise HttpRefusal(500, str(output.stop))
                yield made + b"".join(self.close()), self.ending(output)

    def grow(self, output: EngineOutput) -> Iterator[bytes]:
        """The events of one output."""
        delta = self.chat.delta(output)
        if delta.get("reasoning_content"):
            yield from self.add("thinking", delta["reasoning_content"])
        if delta.get("content"):
            yield from self.add("text", delta["content"])
        for piece in delta.get("tool_calls") or ():
            function = piece["function"]
            if "name" in function:
                yield from self.open("tool_use", id=piece["id"], name=function["name"], input="")
            if function["arguments"]:
                yield from self.add("tool_use", function["arguments"])

    def add(self, kind: str, text: str) -> Iterator[bytes]:
        """More of a block, or a new one."""
        if not self.blocks or self.blocks[-1]["type"] != kind:
            yield from self.open(kind)
        delta, name = PIECES[kind]
        self.blocks[-1]["input" if kind == "tool_use" else name] += text
        yield event("content_block_delta", index=len(self.blocks) - 1,
                    delta={"type": delta, name: text})  # fmt: skip

    def open(self, kind: str, **more: Any) -> Iterator[bytes]:
        """A block that begins ends the one before it."""
        yield from self.close()
        self.blocks.append({**BLOCKS[kind], **more})
        shown = {**self.blocks[-1], **({"input": {}} if kind == "tool_use" else {})}
        yield event("content_block_start", index=len(self.blocks) - 1, content_block=shown)

    def close(self) -> Iterator[bytes]:
        """The end of the open block."""
        if self.blocks:
            yield event("content_block_stop", index=len(self.blocks) - 1)

    def ending(self, output: EngineOutput) -> dict[str, Any]:
        """Why the text ended, in the words of this API."""
        called = any(block["type"] == "tool_use" for block in self.blocks)
        if output.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if called:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(output.stop, str) and output.stop in self.asked.sampling.stop:
            return {"stop_reason": "stop_sequence", "stop_sequence": output.stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def usage(self) -> dict[str, int]:
        """Tokens so far."""
        used = self.generation.tally.to_json()
        return {"input_tokens": used["prompt_tokens"], "output_tokens": used["completion_tokens"]}


def parse_arguments(arguments: str) -> Any:
    """The arguments of a call as JSON; a call that `max_tokens` cut has none."""
    try:
        return orjson.loads(arguments or "{}")
    except ValueError:
        return {}


def event(kind: str, **more: Any) -> bytes:
    """One event."""
    return f"event: {kind}\ndata: ".encode() + dumps({"type": kind, **more}) + b"\n\n"
