"""Takes a broken stream over on another backend, without losing or doubling a token.

Three ways. With token ids of the prompt and of everything sent, an engine of joymigrate is handed
the request with them (`resume`) and brings itself to the same place, every field included. Another
server is asked to go on behind the ids, where every field of the request allows that. Without ids
the same question is asked again; what is said first is compared with what the client has,
character by character, and only the rest is sent. Where the two differ, or where no way can be
exact, the client gets a visible error event. Several choices, also of several prompts, go on in
the first way only, each behind its own ids. Tool calls go on where their arguments stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import orjson

from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.stream import Other, RelayedStream, StreamedToolCall

CONTENT = "content"
KEPT = ("id", "created", "model", "system_fingerprint")
EXTRAS = ("token_ids", "prompt_token_ids")
RESUMED = "X-Joymigrate-Resumed"  # a header of joymigrate's engine: it has understood `resume`
# What a continuation behind token ids passes on: fields that act on each token by itself, so that
# it does not matter where the text was cut. Everything else (penalties, seeds, stop strings,
# min_tokens, grammars, truncation, fields that nobody here knows) depends on what came before.
PASSED_ON = frozenset(
    ("model", "stream", "temperature", "top_p", "top_k", "min_p", "logit_bias", "ignore_eos",
     "stop_token_ids", "skip_special_tokens", "user")
)  # fmt: skip
# What only says what the prompt is, which the continuation has as ids, or who asks.
SETTLED = frozenset(
    ("messages", "prompt", "max_tokens", "max_completion_tokens", "stream_options",
     "return_token_ids", "metadata", "store", "service_tier", "chat_template",
     "chat_template_kwargs", "add_generation_prompt", "add_special_tokens")
)  # fmt: skip
# Options of a stream of which a continuation keeps the meaning; counts in every event are none.
STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation"))
# Lists and objects of an event that a replay may drop with its text: the client has their like,
# or they say nothing about the text. Others (hidden states, experts, log probabilities) would be
# lost or doubled without a word.
DROPPED = frozenset(
    ("choices", "delta", "usage", "token_ids", "prompt_token_ids", "tool_calls", "metadata",
     "content_filter_results", "prompt_filter_results")
)  # fmt: skip
# Fields that change nothing where they have one of these values.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "stop": ([], ""), "min_tokens": (0,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "logprobs": (False,), "top_logprobs": (0,), "tools": ([],), "tool_choice": ("none",),
    "response_format": ({"type": "text"},), "include_stop_str_in_output": (False,),
    "parallel_tool_calls": (True, False), "use_beam_search": (False,), "length_penalty": (1,),
}  # fmt: skip


class Diverged(Exception):
    """The other backend says something else than what the client already has."""


@dataclass(slots=True)
class Sent:
    """What the client has received: the head of its events, text by channel, token ids."""

    head: dict[str, Any] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    prompts: dict[int, list[int]] = field(default_factory=dict)  # ids of the prompt, by choice
    calls: dict[int, list[StreamedToolCall]] = field(default_factory=dict)  # tool calls, by choice
    all_ids: list[int] = field(default_factory=list)  # with those that have no text yet
    ours: bool = False  # an engine of joymigrate said it
    others: dict[int, Other] = field(default_factory=dict)  # the choices behind the first
    opened: set[int] = field(default_factory=lambda: {0})  # choices of which anything was seen
    ended: set[int] = field(default_factory=set)  # choices that said why they end

    @classmethod
    def of(cls, stream: RelayedStream) -> Sent:
        """What a broken stream delivered before it broke.

        Ids that came without text stand for a character that is not complete yet: they are not
        counted as sent, the other backend generates them again.
        """
        spoken = [count for count, has_text in stream.ids_text if has_text]
        sent = cls(
            head={key: stream.first[key] for key in (*KEPT, "object") if key in stream.first}
            if stream.first
            else {},
            ids=stream.ids[: spoken[-1]] if spoken else [],
            prompts=dict(stream.prompts),
            calls=stream.calls or {},
            all_ids=list(stream.ids),
            ours=stream.ours,
            others=stream.others,
            opened=stream.opened | ({0} if stream.pieces else set()),
            ended=stream.ended,
        )
        if sent.calls:
            sent.opened |= sent.calls.keys()
        for channel, pieces in {CONTENT: stream.pieces, **stream.channels}.items():
            sent.text[channel] = "".join(pieces)
        return sent

    @property
    def prompt_ids(self) -> list[int] | None:
        """The ids of the first choice's prompt."""
        return self.prompts.get(0)


class Continuation(Protocol):
    """How to go on: what to ask, and how the answer's events become the client's."""

    way: str
    path: str | None
    body: bytes | None
    sent: Sent
    exhausted: bool  # every token was sent: only the end is missing
    wrote: bool  # something of it went to the client
    needs: str | None  # a header without which the answer is to something else

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The event for the client, None when it has that already; raises `Diverged`."""


def obstacle(call: GatewayCall, stream: RelayedStream) -> str | None:
    """Why a stream cannot be resumed exactly, or None when it can."""
    body = call.parsed
    if not call.api.resumes or body is None:
        return "only chat and completion streams can be resumed"
    if stream.calls is None:
        return "a tool call had begun, in a form that cannot be followed"
    several = call.choices
    if stream.highest >= several or (body.get("best_of") or several) != several:
        return "it has more choices than were asked for"
    if carries_more(body) and several == 1 and not (stream.ids and stream.prompt_ids):
        return "it carries log probabilities or its prompt"
    return None


def carries_more(body: Mapping[str, Any]) -> bool:
    """Whether a stream holds what its text does not show: a replay could not be compared."""
    return bool(body.get("logprobs") or body.get("echo") or body.get("prompt_logprobs") is not None)


def continuations(call: GatewayCall, sent: Sent, *, resumes: bool = False) -> list[Continuation]:
    """The exact ways to go on behind what was sent, the better one first; `resumes`: the other
    backend is an engine of joymigrate."""
    body = call.parsed or {}
    ways: list[Continuation] = []
    several = call.choices
    if several > 1:
        exact = resumes and sent.prompts and set(sent.text) == {CONTENT}
        return (
            [ByResume(call, sent, several)] if exact and (sent.ours or not is_seeded(body)) else []
        )
    known = bool(sent.prompt_ids) and list(sent.text) == [CONTENT]
    if sent.ended:  # only the usage is missing
        return [ByResume(call, sent)] if resumes and known and sent.ours else []
    if resumes and known and sent.all_ids and (sent.ours or not is_seeded(body)):
        ways.append(ByResume(call, sent))
    # A client that has ids of half a character would get them twice.
    whole = sent.ids == sent.all_ids or not body.get("return_token_ids")
    if known and sent.ids and whole and hindering_field(body) is None:
        ways.append(ByIds(call, sent))
    return ways if carries_more(body) else [*ways, ByReplay(call, sent)]


def wants_usage(call: GatewayCall, broken: RelayedStream) -> bool:
    """Whether a stream that said everything else has yet to say its usage."""
    options = (call.parsed or {}).get("stream_options")
    wanted = isinstance(options, dict) and bool(options.get("include_usage"))
    return wanted and broken.usage is None and obstacle(call, broken) is None


def is_seeded(body: Mapping[str, Any]) -> bool:
    """Whether the request's draws are to be repeatable: two kinds of server draw differently."""
    return body.get("seed") is not None and body.get("temperature") != 0


def hindering_field(body: Mapping[str, Any]) -> str | None:
    """The first field for which a continuation behind token ids is not known to be exact."""
    for name, value in body.items():
        if name == "stream_options" and keeps_no_option(value):
            return name
        if value is None or name in PASSED_ON or name in SETTLED:
            continue
        if name == "seed" and body.get("temperature") == 0:
            continue  # nothing is drawn
        if not any(value == harmless for harmless in NEUTRAL.get(name, ())):
            return name
    return None


def keeps_no_option(options: Any) -> bool:
    """Whether a stream's options ask for more than a continuation keeps."""
    return not isinstance(options, dict | None) or any(
        on and name not in STREAM_OPTIONS for name, on in (options or {}).items()
    )


class ByResume:
    """Hand an engine of joymigrate the request and what came of it; it goes on from there."""

    way = "resume"
    path: str | None = None
    exhausted = False
    needs: str | None = RESUMED

    def __init__(self, call: GatewayCall, sent: Sent, choices: int = 1) -> None:
        self.sent = sent
        self.wrote = False
        first: dict[str, Any] = {"output_ids": sent.all_ids, "text": sent.text.get(CONTENT, "")}
        said = {0: first} | {
            index: {"output_ids": other.ids, "text": "".join(other.pieces)}
            for index, other in sent.others.items()
        }
        for index, calls in sent.calls.items():
            said[index]["tool_calls"] = [asdict(one) for one in calls]
        told: dict[str, Any] = {"prompt_ids": sent.prompt_ids, **first}
        if choices > 1:
            rows = [said[index] if index in sent.opened else None for index in range(choices)]
            each = choices // call.prompts
            known = {index // each: ids for index, ids in sent.prompts.items()}
            prompts = [known.get(place) for place in range(call.prompts)]
            told = {"prompts": prompts, "choices": rows}
        body = {**(call.parsed or {}), "resume": told, "return_token_ids": True}
        self.body: bytes | None = orjson.dumps(body)

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        choices = event.get("choices")
        if choices and choices[0].get("index") in self.sent.ended:
            return None  # the client knows that this choice has ended
        return {**event, **{key: self.sent.head[key] for key in KEPT if key in self.sent.head}}


class ByReplay:
    """Ask again; skip, after comparison, what the client has."""

    way = "replay"
    needs: str | None = None
    path: str | None = None
    body: bytes | None = None

    def __init__(self, call: GatewayCall, sent: Sent) -> None:
        self.chat = call.chat
        self.sent = sent
        self.exhausted = self.wrote = False
        self.left = dict(sent.text)
        self.calls_left = [
            StreamedToolCall(one.name, one.arguments) for one in sent.calls.get(0, ())
        ]
        self.unseen = set(range(len(self.calls_left)))
        self.ids_left = list(sent.all_ids)
        self.saw_ids = False

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        event = {**event, **{key: self.sent.head[key] for key in KEPT if key in self.sent.head}}
        choices = event.get("choices")
        if not choices:
            return event if event.get("usage") else None
        choice = dict(choices[0])
        if self.behind and (more := unread_content(event, choice, choice.get("delta") or {})):
            raise Diverged(f"'{more}' of what was said again cannot be compared")
        ids = self.skip_ids(choice.get("token_ids") or [])
        if "token_ids" in choice:
            choice["token_ids"] = ids
            self.saw_ids = True
        if self.sent.head:
            choice.pop("prompt_token_ids", None)
        source = dict(choice.get("delta") or {}) if self.chat else choice
        fresh = False
        if source.get("tool_calls"):
            source["tool_calls"] = self.skip_calls(source["tool_calls"])
            if not source["tool_calls"]:
                del source["tool_calls"]
        for name in list(source):
            if self.chat and isinstance(source[name], str) and name != "role":
                source[name] = self.skip(name, source[name])
                fresh = fresh or bool(source[name])
        if fresh and self.calls_due:
            raise Diverged("the other backend says something else before its tool call")
        if not self.chat:
            source["text"] = self.skip(CONTENT, source.get("text") or "")
            fresh = bool(source["text"])
        elif self.sent.head:
            source.pop("role", None)
            fresh = fresh or bool(source.get("tool_calls"))
        if choice.get("finish_reason"):
            if any(self.left.values()) or self.calls_due:
                raise Diverged("the other backend ended before the point of the break")
        elif not fresh and not ids and self.sent.head:
            return None
        if choice.get("finish_reason") and self.saw_ids and self.ids_left:
            raise Diverged("the other backend generates fewer tokens")
        if self.chat:
            choice["delta"] = source
        return {**event, "choices": [choice if self.chat else source]}

    @property
    def behind(self) -> bool:
        """Whether the client has more than was said again so far."""
        return any(self.left.values()) or bool(self.ids_left) or self.calls_due

    def skip_ids(self, ids: list[int]) -> list[int]:
        """Those of `ids` that the client does not have yet."""
        count = min(len(ids), len(self.ids_left))
        if ids[:count] != self.ids_left[:count]:
            raise Diverged("the other backend generates other tokens")
        self.ids_left = self.ids_left[count:]
        return ids[count:]

    @property
    def calls_due(self) -> bool:
        """Whether the client has more of tool calls than was said again so far."""
        return bool(self.unseen) or any(one.arguments for one in self.calls_left)

    def skip_calls(self, pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those pieces of tool calls that the client does not have; it knows the others by the
        first backend's ids."""
        fresh = []
        for piece in pieces:
            function = piece.get("function") or {}
            if piece["index"] >= len(self.calls_left):
                if self.calls_due:
                    raise Diverged("the other backend calls with other arguments")
                fresh.append(piece)
                continue
            self.unseen.discard(piece["index"])
            due = self.calls_left[piece["index"]]
            if (function.get("name") or due.name) != due.name:
                raise Diverged("the other backend calls another function")
            arguments = function.get("arguments") or ""
            length = min(len(due.arguments), len(arguments))
            if due.arguments[:length] != arguments[:length]:
                raise Diverged("the other backend calls with other arguments")
            due.arguments = due.arguments[length:]
            if arguments[length:]:
                rest = {"arguments": arguments[length:]}
                fresh.append({"index": piece["index"], "function": rest})
        return fresh

    def skip(self, channel: str, text: str) -> str:
        """What of `text` the client does not have yet."""
        due = self.left.get(channel, "")
        if not due or not text:
            return text
        length = min(len(due), len(text))
        if due[:length] != text[:length]:
            raise Diverged("the other backend generates another text")
        self.left[channel] = due[length:]
        return text[length:]


class ByIds:
    """Hand over the ids of the prompt and of what was generated; the rest is new."""

    way = "ids"
    path: str | None = "/v1/completions"
    needs: str | None = None

    def __init__(self, call: GatewayCall, sent: Sent) -> None:
        asked = call.parsed or {}
        self.chat = call.chat
        self.sent = sent
        self.wrote = False
        self.wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self.wants_ids = bool(asked.get("return_token_ids"))
        body = {key: value for key, value in asked.items() if key in PASSED_ON}
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        # An explicit null lifts the default of 16 tokens that completions have.
        body["max_tokens"] = limit - len(sent.ids) if limit else None
        body["prompt"] = [*(sent.prompt_ids or ()), *sent.ids]
        body["stream_options"] = {"include_usage": True}
        body["return_token_ids"] = True
        self.exhausted = limit is not None and limit <= len(sent.ids)
        self.body: bytes | None = orjson.dumps(body)

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        head = {key: self.sent.head[key] for key in (*KEPT, "object") if key in self.sent.head}
        event = {**event, **head}
        if event.get("usage"):
            event["usage"] = self.summed(event["usage"])
        if not self.wants_ids:
            for name in EXTRAS:
                event.pop(name, None)
        choices = event.get("choices")
        if not choices:
            return event if event.get("usage") and self.wants_usage else None
        choice = {k: v for k, v in choices[0].items() if self.wants_ids or k not in EXTRAS}
        text = choice.pop("text", None) or ""
        if not text and not choice.get("finish_reason") and not choice.get("token_ids"):
            return None
        if self.chat:
            choice["delta"] = {"content": text} if text else {}
        else:
            choice["text"] = text
        return {**event, "choices": [choice]}

    def summed(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The usage of both backends together: the replayed ids were generated, not prompted."""
        generated = len(self.sent.ids) + int(usage.get("completion_tokens") or 0)
        prompt = len(self.sent.prompt_ids or ())
        return {
            **usage,
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        }


def unread_content(*parts: Mapping[str, Any]) -> str | None:
    """The first list or object in an event's parts that is no text and would be dropped with it."""
    for part in parts:
        for name, value in part.items():
            if value and isinstance(value, list | dict) and name not in DROPPED:
                return name
    return None


def finish_event(call: GatewayCall, sent: Sent) -> dict[str, Any]:
    """The last event of a stream whose tokens were all sent when it broke."""
    rest: dict[str, Any] = {"delta": {}} if call.chat else {"text": ""}
    return {**sent.head, "choices": [{"index": 0, **rest, "finish_reason": "length"}]}


def encode(event: dict[str, Any]) -> bytes:
    """An event as it goes over the wire."""
    return b"data: " + orjson.dumps(event) + b"\n\n"


DONE = b"data: [DONE]\n\n"
