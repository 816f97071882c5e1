"""Answers POST /v1/responses: items out of a chat's words and calls, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

from joymigrate.run.serve.engine.http import chat, logprobs, streaming
from joymigrate.run.serve.engine.http.chat import ChatAnswer, ChatRequest
from joymigrate.run.serve.engine.http.generation import HttpGeneration
from joymigrate.run.serve.engine.http.responses.chat_request import CALLED, chat_of
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.engine.types import EngineOutput
from joymigrate.run.serve.web.messages import Ask, Reply, dumps

# Fields of a request that its answer repeats, and what they are where it does not say.
REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "user": None,
}


async def answer(service: EngineService, ask: Ask) -> Reply:
    """Answer POST /v1/responses."""
    body = ask.json()
    return await streaming.answer(
        service, ask, lambda: chat.read_as(service, chat_of(body), CALLED),
        partial(Response, body=body),
    )  # fmt: skip


STATUSES = {"length": "incomplete", "error": "failed"}  # by why a text ended


class Response:
    """One answer in the making: its items, of which the last one is open."""

    def __init__(
        self,
        service: EngineService,
        ask: Ask,
        asked: ChatRequest,
        generation: HttpGeneration,
        body: dict[str, Any],
    ) -> None:
        self.service, self.asked, self.generation = service, asked, generation
        self.chat = ChatAnswer(service, ask, asked, generation)
        self.id = ask.id
        self.items: list[dict[str, Any]] = []
        self.rows: list[Any] = []  # log-probabilities of tokens whose text has not come yet
        self.number = 0  # of the next event
        sampling = asked.sampling
        self.head: dict[str, Any] = {
            "id": f"resp_{ask.id}",
            "object": "response",
            "created_at": service.stamp(),
            "model": asked.model,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "previous_response_id": None,
            "store": False,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            **{k: v if body.get(k) is None else body[k] for k, v in REPEATED.items()},
        }

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        last = ""
        async for _, reason in self.run():
            last = reason or last
        return self.ended(last)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as events."""
        last = ""
        yield self.event("response.created", response=self.head)
        yield self.event("response.in_progress", response=self.head)
        async for made, reason in self.run():
            last = reason or last
            yield made
        whole = self.ended(last)
        yield self.event(f"response.{whole['status']}", response=whole)

    async def run(self) -> AsyncGenerator[tuple[bytes, str | None], None]:
        """(events, why the text ended) of each output."""
        async with aclosing(self.generation.outputs()) as outputs:
            async for _, output in outputs:
                made = b"".join(self.grow(output))
                if output.finish_reason:
                    if output.finish_reason == "error":
                        why = {"code": "server_error", "message": str(output.stop)}
                        self.head["error"] = why
                    whole = output.finish_reason == "stop"
                    made += b"".join(self.close("completed" if whole else "incomplete"))
                if made or output.finish_reason:
                    yield made, output.finish_reason

    def grow(self, output: EngineOutput) -> Iterator[bytes]:
        """The events of one output."""
        delta = self.chat.delta(output)
        if delta.get("reasoning_content"):
            yield from self.think(delta["reasoning_content"])
        if self.asked.sampling.logprobs is not None and output.logprobs:
            self.rows += logprobs.chat(output.logprobs, self.service.words)
        if delta.get("content") or (self.rows and self.item("message") is not None):
            rows, self.rows = self.rows, []
            yield from self.words(delta.get("content", ""), rows)
        for piece in delta.get("tool_calls") or ():
            self.rows = []
            yield from self.call(piece)

    def item(self, kind: str) -> dict[str, Any] | None:
        """The open item, where it is of this kind."""
        last = self.items[-1] if self.items else None
        fits = last is not None and last["type"] == kind and last["status"] == "in_progress"
        return last if fits else None

    def think(self, text: str) -> Iterator[bytes]:
        """Thoughts that go on, or begin."""
        item = self.item("reasoning")
        if item is None:
            yield from self.close("completed")
            item = {"type": "reasoning", "summary": [], "content": []}
            yield self.opened(item, "rs")
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        item["content"][0]["text"] += text
        yield self.event("response.reasoning_text.delta", **self.place(item), content_index=0,
                         delta=text)  # fmt: skip

    def words(self, text: str, rows: list[Any]) -> Iterator[bytes]:
        """Words that go on, or begin, a message."""
        item = self.item("message")
        if item is None:
            yield from self.close("completed")
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"type": "message", "role": "assistant", "content": []}
            yield self.opened(item, "msg")
            item["content"] = [part]
            yield self.event("response.content_part.added", **self.place(item), content_index=0,
                             part=part)  # fmt: skip
        part = item["content"][0]
        part["text"] += text
        part["logprobs"] += rows
        if text:
            yield self.event("response.output_text.delta", **self.place(item), content_index=0,
                             delta=text, logprobs=rows)  # fmt: skip

    def call(self, piece: dict[str, Any]) -> Iterator[bytes]:
        """A call that begins, or more of its arguments."""
        function = piece["function"]
        item = self.item("function_call")
        if "name" in function:
            yield from self.close("completed")
            item = {"type": "function_call", "call_id": piece["id"], "name": function["name"],
                    "arguments": ""}  # fmt: skip
            yield self.opened(item, "fc")
        assert item is not None
        item["arguments"] += function["arguments"]
        if function["arguments"]:
            yield self.event("response.function_call_arguments.delta", **self.place(item),
                             delta=function["arguments"])  # fmt: skip

    def opened(self, item: dict[str, Any], sign: str) -> bytes:
        """A new item."""
        item |= {"id": f"{sign}_{self.id}_{len(self.items)}", "status": "in_progress"}
        self.items.append(item)
        at = len(self.items) - 1
        return self.event("response.output_item.added", output_index=at, item=item)

    def close(self, status: str) -> Iterator[bytes]:
        """End the open item."""
        item = self.item("message") or self.item("function_call") or self.item("reasoning")
        if item is None:
            return
        item["status"] = status
        place = self.place(item)
        if item["type"] == "message":
            part = item["content"][0]
            yield self.event("response.output_text.done", **place, content_index=0,
                             text=part["text"], logprobs=part["logprobs"])  # fmt: skip
            yield self.event("response.content_part.done", **place, content_index=0, part=part)
        elif item["type"] == "reasoning":
            yield self.event("response.reasoning_text.done", **place, content_index=0,
                             text=item["content"][0]["text"])  # fmt: skip
        else:
            yield self.event("response.function_call_arguments.done", **place, name=item["name"],
                             arguments=item["arguments"])  # fmt: skip
        at = len(self.items) - 1
        yield self.event("response.output_item.done", output_index=at, item=item)

    def place(self, item: dict[str, Any]) -> dict[str, Any]:
        """Where an item stands."""
        return {"item_id": item["id"], "output_index": len(self.items) - 1}

    def ended(self, reason: str) -> dict[str, Any]:
        """The whole answer. One that `max_output_tokens` cut says so."""
        cut = reason == "length"
        used = self.generation.tally.to_json()
        return {
            **self.head,
            "status": STATUSES.get(reason, "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self.items,
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {
                    "reasoning_tokens": sum(one.tokens for one in self.chat.thoughts)
                },
                "total_tokens": used["total_tokens"],
            },
        }

    def event(self, kind: str, **more: Any) -> bytes:
        """One event."""
        made = {"type": kind, "sequence_number": self.number, **more}
        self.number += 1
        return f"event: {kind}\ndata: ".encode() + dumps(made) + b"\n\n"
