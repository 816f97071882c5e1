"""How the answers of each API are read: all that speak are turned into one form, a chat's.

A `RequestForm` says how a stream ends well, what inside a 200 is an error, and where words, tokens,
calls and usage are. `whole`, `event` and `asked` return a chat's answer, chunk and request, so that
only one of them has to be judged, compared and counted. What is read here was written by a server
(or a client) that may be any: every value may be of any type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Answer = dict[str, Any]


def same(given: Answer) -> Answer:
    """What has a chat's form already."""
    return given


@dataclass(frozen=True, slots=True)
class RequestForm:
    """`most`: fields that bound an answer's length, the usual one first. `last`: types of the
    events behind which nothing comes; without them `[DONE]` is the end. `sound`: what of an answer
    without words is wrong, or None. `chat`: whether a choice has a message, or else a text."""

    name: str
    speaks: bool = False
    chat: bool | None = None
    whole: Callable[[Answer], Answer] = same
    event: Callable[[Answer], Answer] = same
    asked: Callable[[Answer], Answer] = same
    most: tuple[str, ...] = ()
    last: frozenset[str] = frozenset()
    sound: Callable[[Answer, Answer], str | None] = lambda answer, asked: None


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def rows_in(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a JSON list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """A text; an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def chunk(delta: Answer, finish: Any = None, **more: Any) -> Answer:
    """One event of a chat's stream."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def error_in(error: Any, usual: str) -> Answer:
    """An error inside a 200."""
    return {"error": error or {"message": usual}}


def counts(usage: Any) -> Any:
    """`input_tokens` and `output_tokens` under a chat's names; what is odd stays odd."""
    if not isinstance(usage, dict):
        return usage
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    return {names.get(name, name): value for name, value in usage.items()}


# /v1/responses

NEW, LAST = -2, -1  # places of tool calls where a stream does not number them
CALL_KINDS = ("function_call", "custom_tool_call", "mcp_call")
# Tools that say their name; those of an MCP server do not. What calls a custom one is any text.
OFFERED = ("function", "custom")
RESPONSE_ENDS = frozenset(("response.completed", "response.incomplete"))
RESPONSE_FAILS = frozenset(("response.failed", "response.cancelled", "error"))
THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


def of_response(answer: Answer) -> Answer:
    """A whole answer of /v1/responses."""
    status, items = answer.get("status"), answer.get("output")
    if status in ("failed", "cancelled") or answer.get("error"):
        return error_in(answer.get("error"), f"status is {status}")
    found: Answer = {name: answer[name] for name in ("id", "object", "model") if name in answer}
    found |= {"created": answer.get("created_at"), "usage": counts(answer.get("usage"))}
    if not isinstance(items, list):
        return found
    message = message_of(rows_in(items))
    choice = {"index": 0, "message": message, "finish_reason": ending(answer, message)}
    return {**found, "choices": [choice]}


def message_of(items: list[Mapping[str, Any]]) -> Answer:
    """What the items of an answer say."""
    words: list[str] = []
    thoughts: list[str] = []
    refusals: list[str] = []
    calls: list[Answer] = []
    for item in items:
        for part in rows_in(item.get("content")):
            spoken = thoughts if item.get("type") == "reasoning" else words
            spoken.append(text(part.get("text")))
            refusals.append(text(part.get("refusal")))
        thoughts += [text(part.get("text")) for part in rows_in(item.get("summary"))]
        if item.get("type") in CALL_KINDS:
            calls.append(call_of(item.get("call_id") or item.get("id"), item.get("name"),
                                 item.get("arguments", item.get("input"))))  # fmt: skip
    return spoken_message(words, thoughts, refusals, calls)


def spoken_message(
    words: list[str], thoughts: list[str], refusals: list[str], calls: list[Answer]
) -> Answer:
    """A chat's message; what was not said has no field."""
    message: Answer = {"role": "assistant", "content": "".join(words)}
    more = {"reasoning_content": "".join(thoughts), "refusal": "".join(refusals),
            "tool_calls": calls}  # fmt: skip
    return message | {name: value for name, value in more.items() if value}


def call_of(called: Any, name: Any, arguments: Any) -> Answer:
    """A tool call."""
    return {"id": called, "type": "function", "function": {"name": name, "arguments": arguments}}


def ending(answer: Mapping[str, Any], message: Mapping[str, Any]) -> str | None:
    """Why an answer of /v1/responses ended; None: it does not say so."""
    if answer.get("status") == "completed":
        return "tool_calls" if message.get("tool_calls") else "stop"
    if answer.get("status") != "incomplete":
        return None
    reason = mapping(answer.get("incomplete_details")).get("reason")
    return "content_filter" if reason == "content_filter" else "length"


def response_event(event: Answer) -> Answer:
    """One event of a stream of /v1/responses."""
    kind = text(event.get("type"))
    if kind in RESPONSE_FAILS:
        response = mapping(event.get("response"))
        return error_in(response.get("error") or event.get("message"), f"the stream ends by {kind}")
    if kind == "response.output_text.delta":
        return chunk({"content": event.get("delta")})
    if kind in THOUGHTS:
        return chunk({"reasoning_content": event.get("delta")})
    if kind == "response.refusal.delta":
        return chunk({"refusal": event.get("delta")})
    if kind == "response.output_item.done":
        item = mapping(event.get("item"))
        made = message_of([item]).get("tool_calls") if item.get("type") in CALL_KINDS else None
        return chunk({"tool_calls": [{**made[0], "index": NEW}]}) if made else {}
    if kind in RESPONSE_ENDS:
        whole = of_response({"output": [], **mapping(event.get("response")), "status": kind[9:]})
        finish = whole["choices"][0]["finish_reason"] if "choices" in whole else "stop"
        return {**whole, **chunk({}, finish)} if "error" not in whole else whole
    return {}


def response_asked(body: Answer) -> Answer:
    """A request of /v1/responses."""
    form = mapping(body.get("text")).get("format")
    tools = [
        {"type": kind, kind: tool} if (kind := tool.get("type")) in OFFERED else tool
        for tool in rows_in(body.get("tools"))
        if tool.get("type") in (*OFFERED, "mcp")
    ]
    made = {"max_tokens": body.get("max_output_tokens"), "response_format": form, "tools": tools}
    kept = {name: value for name, value in body.items()
            if name not in ("text", "tools", "max_output_tokens", "top_logprobs")}  # fmt: skip
    return kept | {name: value for name, value in made.items() if value}


# /v1/messages

STOPS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "pause_turn": "stop",
         "model_context_window_exceeded": "length", "tool_use": "tool_calls",
         "refusal": "content_filter"}  # fmt: skip


def of_message(answer: Answer) -> Answer:
    """A whole answer of /v1/messages."""
    if answer.get("type") == "error" or answer.get("error"):
        return error_in(answer.get("error"), "an error")
    found: Answer = {name: answer[name] for name in ("id", "model") if name in answer}
    found |= {"object": answer.get("type"), "usage": counts(answer.get("usage"))}
    blocks = answer.get("content")
    if not isinstance(blocks, list):
        return found
    each = rows_in(blocks)
    calls = [call_of(one.get("id"), one.get("name"), one.get("input")) for one in each
             if one.get("type") == "tool_use"]  # fmt: skip
    message = spoken_message([text(one.get("text")) for one in each],
                             [text(one.get("thinking")) for one in each], [], calls)  # fmt: skip
    message["role"] = answer.get("role")
    stop = answer.get("stop_reason")
    choice = {"index": 0, "message": message, "finish_reason": STOPS.get(text(stop), stop)}
    return {**found, "choices": [choice]}


def message_event(event: Answer) -> Answer:
    """One event of a stream of /v1/messages."""
    kind, delta = event.get("type"), mapping(event.get("delta"))
    if kind == "error":
        return error_in(event.get("error"), "an error event")
    if kind == "message_start":
        message = mapping(event.get("message"))
        known = {name: message[name] for name in ("id", "model") if name in message}
        return {**known, "usage": counts(message.get("usage"))}
    if kind == "content_block_start":
        block = mapping(event.get("content_block"))
        if block.get("type") != "tool_use":
            return {}
        begun = call_of(block.get("id"), block.get("name"), "")
        return chunk({"tool_calls": [{**begun, "index": NEW}]})
    if kind == "content_block_delta":
        if "partial_json" in delta:
            more = {"index": LAST, "function": {"arguments": delta["partial_json"]}}
            return chunk({"tool_calls": [more]})
        if "thinking" in delta:
            return chunk({"reasoning_content": delta["thinking"]})
        return chunk({"content": delta["text"]}) if "text" in delta else {}
    if kind == "message_delta":
        stop = delta.get("stop_reason")
        return chunk({}, STOPS.get(text(stop), stop), usage=counts(event.get("usage")))
    return {}


def message_asked(body: Answer) -> Answer:
    """A request of /v1/messages."""
    tools = [{"type": "function", "function": {"name": tool.get("name"),
                                               "parameters": tool.get("input_schema")}}
             for tool in rows_in(body.get("tools"))]  # fmt: skip
    choice = mapping(body.get("tool_choice")).get("type")
    chosen = {"any": "required", "none": "none"}.get(text(choice))
    made = {"stop": body.get("stop_sequences"), "tools": tools, "tool_choice": chosen}
    kept = {name: value for name, value in body.items()
            if name not in ("stop_sequences", "tools", "tool_choice")}  # fmt: skip
    return kept | {name: value for name, value in made.items() if value}


# Triton's generate


def of_generate(answer: Answer) -> Answer:
    """A whole answer of Triton's generate."""
    said = answer.get("text_output")
    if not isinstance(said, str):
        return answer
    message = {"role": "assistant", "content": said}
    return {**answer, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def generate_event(event: Answer) -> Answer:
    """One event of Triton's generate_stream."""
    said = event.get("text_output")
    return chunk({"content": said}) | event if isinstance(said, str) else event


def has_text(answer: Answer, asked: Answer) -> str | None:
    """What of an answer of Triton's generate is wrong."""
    return None if answer.get("choices") else "no text_output"


# Answers without words


def is_number(value: Any) -> bool:
    """Whether a value is a number that is one."""
    return type(value) in (int, float) and math.isfinite(value)


def has_vectors(answer: Answer, asked: Answer) -> str | None:
    """What of an answer of /v1/embeddings is wrong: one vector for each text, of numbers."""
    rows, given = rows_in(answer.get("data")), asked.get("input")
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    due = len(given) if several and isinstance(given, list) else 1
    if len(rows) != due:
        return f"{len(rows)} vectors for {due} texts"
    for row in rows:
        vector = row.get("embedding")
        numbers = vector if isinstance(vector, list) else []
        if not vector or not (isinstance(vector, str) or all(map(is_number, numbers))):
            return "a vector that is none"
    return None


def has_scores(answer: Answer, asked: Answer) -> str | None:
    """What of an answer of /v1/score or /v1/rerank is wrong."""
    rows = rows_in(answer.get("data")) or rows_in(answer.get("results"))
    if not rows:
        return "no scores"
    named = all(is_number(row.get("score", row.get("relevance_score"))) for row in rows)
    return None if named else "a score that is no number"


def has_outputs(answer: Answer, asked: Answer) -> str | None:
    """What of a ranking answer is wrong (/v1/rank, KServe)."""
    outputs = answer.get("outputs")
    return None if outputs and isinstance(outputs, dict | list) else "no outputs"


def has_tokens(answer: Answer, asked: Answer) -> str | None:
    """What of an answer about tokens is wrong."""
    known = ("tokens", "prompt", "count", "input_tokens")
    return None if any(name in answer for name in known) else "no tokens"


CHAT = RequestForm("chat", True, True, most=("max_tokens", "max_completion_tokens"))
TEXT = RequestForm("text", True, False, most=("max_tokens", "max_completion_tokens"))
EITHER = RequestForm("chat or text", True)
ANY = RequestForm("any")
RESPONSES = RequestForm("responses", True, True, of_response, response_event, response_asked,
                        ("max_output_tokens",), RESPONSE_ENDS)  # fmt: skip
MESSAGES = RequestForm("messages", True, True, of_message, message_event, message_asked,
                       ("max_tokens",), frozenset(("message_stop",)))  # fmt: skip
GENERATE = RequestForm("generate", False, None, of_generate, generate_event, most=("max_tokens",),
                       sound=has_text)  # fmt: skip
VECTORS = RequestForm("vectors", sound=has_vectors)
SCORES = RequestForm("scores", sound=has_scores)
OUTPUTS = RequestForm("outputs", sound=has_outputs)
TOKENS = RequestForm("tokens", sound=has_tokens)
SOMETHING = RequestForm(
    "something", sound=lambda answer, asked: None if answer else "an empty object"
)


# Errors in the middle of a stream, in the words of the API


def broken_event(form: RequestForm | None, message: str) -> bytes:
    """The event by which a client is told that its stream broke."""
    error: Answer = {"message": message, "type": "upstream_error", "param": None,
                     "code": "stream_interrupted"}  # fmt: skip
    if form is MESSAGES:
        told: Answer = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: " + json.dumps(told).encode() + b"\n\n"
    if form is RESPONSES:
        told = {"type": "error", "code": "server_error", "message": message, "param": None,
                "sequence_number": 0}  # fmt: skip
        return b"event: error\ndata: " + json.dumps(told).encode() + b"\n\n"
    plain = json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + plain.encode() + b"\n\ndata: [DONE]\n\n"
