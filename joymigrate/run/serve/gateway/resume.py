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
from dataclasses import asdict, replace
from typing import Any

import orjson

from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.reader import ReadChoice, called_in
from joymigrate.run.serve.gateway.stream import RelayedStream

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


class Continuation:
    """How to go on behind what was `sent`: what to ask, and how the answer's events become the
    client's."""

    way = ""
    path: str | None = None
    body: bytes | None = None
    needs: str | None = None  # a header without which the answer is to something else
    exhausted = False  # every token was sent: only the end is missing

    def __init__(self, call: GatewayCall, sent: RelayedStream) -> None:
        self.chat = call.chat
        self.sent = sent
        self.wrote = False  # something of it went to the client
        self.head = head_of(sent)
        self.begun = sent.first is not None  # the client has an event, and with it the role

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The event for the client, None when it has that already; raises `Diverged`."""
        raise NotImplementedError


def head_of(sent: RelayedStream, *more: str) -> dict[str, Any]:
    """What all events of a stream say alike."""
    return {key: (sent.first or {})[key] for key in (*KEPT, *more) if key in (sent.first or {})}


def obstacle(call: GatewayCall, stream: RelayedStream) -> str | None:
    """Why a stream cannot be resumed exactly, or None when it can."""
    body = call.parsed
    if not call.api.resumes or body is None:
        return "only chat and completion streams can be resumed"
    if not stream.followed:
        return "a tool call had begun, in a form that cannot be followed"
    several = call.choices
    if stream.highest >= several or (body.get("best_of") or several) != several:
        return "it has more choices than were asked for"
    if carries_more(body) and several == 1 and not (stream.main.ids and stream.main.prompt_ids):
        return "it carries log probabilities or its prompt"
    return None


def carries_more(body: Mapping[str, Any]) -> bool:
    """Whether a stream holds what its text does not show: a replay could not be compared."""
    return bool(body.get("logprobs") or body.get("echo") or body.get("prompt_logprobs") is not None)


def continuations(
    call: GatewayCall, sent: RelayedStream, *, resumes: bool = False
) -> list[Continuation]:
    """The exact ways to go on behind what was sent, the better one first; `resumes`: the other
    backend is an engine of joymigrate."""
    body, main = call.parsed or {}, sent.main
    ways: list[Continuation] = []
    same_draws = sent.ours or not is_seeded(body)
    spoken = not any(choice.channels for choice in sent.choices.values())
    if call.choices > 1:
        known = spoken and any(choice.prompt_ids is not None for choice in sent.choices.values())
        return [ByResume(call, sent)] if resumes and known and same_draws else []
    known = spoken and bool(main.prompt_ids)
    if sent.ended:  # only the usage is missing
        return [ByResume(call, sent)] if resumes and known and sent.ours else []
    if resumes and known and main.ids and same_draws:
        ways.append(ByResume(call, sent))
    # A client that has ids of half a character would get them twice.
    whole = main.shown == len(main.ids) or not body.get("return_token_ids")
    if known and main.shown and whole and hindering_field(body) is None:
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


class ByResume(Continuation):
    """Hand an engine of joymigrate the request and what came of it; it goes on from there."""

    way = "resume"
    needs = RESUMED

    def __init__(self, call: GatewayCall, sent: RelayedStream) -> None:
        super().__init__(call, sent)
        told: dict[str, Any] = {"prompt_ids": sent.main.prompt_ids, **said_by(sent.main)}
        if call.choices > 1:
            said = {index: said_by(one) for index, one in sent.choices.items() if one.opened}
            rows = [said.get(place) for place in range(call.choices)]
            each = call.choices // call.prompts
            known = {place // each: choice.prompt_ids for place, choice in sent.choices.items()
                     if choice.prompt_ids is not None}  # fmt: skip
            prompts = [known.get(place) for place in range(call.prompts)]
            told = {"prompts": prompts, "choices": rows}
        self.body = orjson.dumps({**(call.parsed or {}), "resume": told, "return_token_ids": True})

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        choices = event.get("choices")
        if choices and choices[0].get("index") in self.sent.ended:
            return None  # the client knows that this choice has ended
        return {**event, **self.head}


def said_by(choice: ReadChoice) -> dict[str, Any]:
    """What an engine of joymigrate is told that a choice said."""
    calls = {"tool_calls": [asdict(one) for one in choice.calls]} if choice.calls else {}
    return {"output_ids": choice.ids, "text": choice.text, **calls}


class ByReplay(Continuation):
    """Ask again; skip, after comparison, what the client has."""

    way = "replay"

    def __init__(self, call: GatewayCall, sent: RelayedStream) -> None:
        super().__init__(call, sent)
        main = sent.main
        said = {CONTENT: main.pieces, **main.channels}
        self.left = {channel: "".join(pieces) for channel, pieces in said.items()}
        self.calls_left = [replace(one) for one in main.calls or ()]
        self.unseen = set(range(len(self.calls_left)))
        self.ids_left = list(main.ids)
        self.saw_ids = False

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        event = {**event, **self.head}
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
        if self.begun:
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
        elif self.begun:
            source.pop("role", None)
            fresh = fresh or bool(source.get("tool_calls"))
        if choice.get("finish_reason"):
            if any(self.left.values()) or self.calls_due:
                raise Diverged("the other backend ended before the point of the break")
        elif not fresh and not ids and self.begun:
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
            name, arguments = called_in(piece)
            if piece["index"] >= len(self.calls_left):
                if self.calls_due:
                    raise Diverged("the other backend calls with other arguments")
                fresh.append(piece)
                continue
            self.unseen.discard(piece["index"])
            due = self.calls_left[piece["index"]]
            if (name or due.name) != due.name:
                raise Diverged("the other backend calls another function")
            arguments = arguments or ""
            length = min(len(due.arguments), len(arguments))
            if due.arguments[:length] != arguments[:length]:
                raise Diverged("the other backend calls with other arguments")
            due.arguments = due.arguments[length:]
            if rest := arguments[length:]:
                more = {"custom": {"input": rest}} if piece.get("custom") else {
                    "function": {"arguments": rest}}  # fmt: skip
                fresh.append({"index": piece["index"], **more})
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


class ByIds(Continuation):
    """Hand over the ids of the prompt and of what was generated; the rest is new.

    Ids that came without text stand for a character that is not complete yet: the other backend
    generates them again.
    """

    way = "ids"
    path = "/v1/completions"

    def __init__(self, call: GatewayCall, sent: RelayedStream) -> None:
        super().__init__(call, sent)
        self.head = head_of(sent, "object")
        asked, main = call.parsed or {}, sent.main
        self.wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self.wants_ids = bool(asked.get("return_token_ids"))
        body = {key: value for key, value in asked.items() if key in PASSED_ON}
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        # An explicit null lifts the default of 16 tokens that completions have.
        body["max_tokens"] = limit - main.shown if limit else None
        body["prompt"] = [*(main.prompt_ids or ()), *main.ids[: main.shown]]
        body["stream_options"] = {"include_usage": True}
        body["return_token_ids"] = True
        self.exhausted = limit is not None and limit <= main.shown
        self.body = orjson.dumps(body)

    def convert(self, event: dict[str, Any]) -> dict[str, Any] | None:
        event = {**event, **self.head}
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
        generated = self.sent.main.shown + int(usage.get("completion_tokens") or 0)
        prompt = len(self.sent.main.prompt_ids or ())
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


def finish_event(call: GatewayCall, sent: RelayedStream) -> dict[str, Any]:
    """The last event of a stream whose tokens were all sent when it broke."""
    rest: dict[str, Any] = {"delta": {}} if call.chat else {"text": ""}
    return {**head_of(sent, "object"), "choices": [{"index": 0, **rest, "finish_reason": "length"}]}


def encode(event: dict[str, Any]) -> bytes:
    """An event as it goes over the wire."""
    return b"data: " + orjson.dumps(event) + b"\n\n"


DONE = b"data: [DONE]\n\n"
