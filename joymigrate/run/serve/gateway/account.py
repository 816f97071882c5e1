"""What an answer says beside its text: counts, names, log probabilities, fields, vectors.

Clients count, bill, route and rank by these. Of a field only the sound ones count as there: a count
of no tokens for a text, a log probability above zero or an identifier that comes twice is none.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from joymigrate.run.serve.evidence.accounts import AnswerFigures
from joymigrate.run.serve.gateway import whole_answers
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.web import forms

ROUNDING = 1e-4  # a log probability may be above zero by so much


def account_of(
    parsed: dict[str, Any], call: GatewayCall, calls: Sequence[tuple[Any, Any]] = ()
) -> AnswerFigures:
    """What a whole answer with these tool calls says; for a stream see `join_events`."""
    body = call.asked
    asked, model = body.get("model"), parsed.get("model")
    account = AnswerFigures(
        asked_model=asked if isinstance(asked, str) else None,
        model=model if isinstance(model, str) and model else None,
        vectors=vectors_of(parsed),
    )
    if not call.strict:
        return account
    prompt, generated = tokens_of(parsed) if asks_counts(body) else (-1, -1)
    text = whole_answers.text_of(parsed)
    echoed = echoed_in(text, body)
    choices = [one for one in parsed.get("choices") or () if isinstance(one, dict)]
    found = {name for name in ("id", "object", "model") if is_word(parsed.get(name))}
    found |= {"created"} if is_count(parsed.get("created")) else set()
    found |= {"usage"} if prompt > 0 and generated >= bool(text[echoed:]) else set()
    found |= {"echo"} if echoed else set()
    for name, sound in (
        ("role", call.chat and all(map(is_the_assistants, choices))),
        ("index", [one.get("index") for one in choices] == list(range(len(choices)))),
        ("logprobs", asks_logprobs(body) and all(map(is_sound, map(score_tokens, choices)))),
        ("top_logprobs", asks_top(body) and all(map(has_likeliest, choices))),
        ("call_ids", has_call_ids(choices)),
        ("reasoning", bool(whole_answers.thoughts_of(parsed))),
        ("wishes", bool(choices) and whole_answers.obeys(parsed, calls, call)),
    ):
        if sound and choices:
            found.add(name)
    return replace(
        account,
        fields=frozenset(found),
        prompt_tokens=prompt,
        answer_tokens=generated,
        logprobs=tuple(
            (token, value) for token, value in score_tokens(choices[0]) if value is not None
        )
        if "logprobs" in found
        else (),
        echoed=echoed,
    )


def echoed_in(text: str, body: Mapping[str, Any]) -> int:
    """Characters of the prompt at the beginning of a text, where it was to be repeated."""
    prompt = body.get("prompt") if body.get("echo") is True else None
    return len(prompt) if isinstance(prompt, str) and text.startswith(prompt) else 0


def join_events(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The events of a chat or completion stream as the whole answer that they make."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        said = {name: value for name, value in event.items() if value and name != "choices"}
        if isinstance(said.get("usage"), dict):
            said["usage"] = {**answer.get("usage", {}), **said["usage"]}
        answer |= said
        for piece in event.get("choices") or ():
            index = piece.get("index") or 0
            choice = choices.setdefault(index, {"index": piece.get("index")})
            choice["finish_reason"] = piece.get("finish_reason") or choice.get("finish_reason")
            if isinstance(piece.get("delta"), dict):
                join(choice.setdefault("message", {}), piece["delta"])
            elif isinstance(piece.get("text"), str):
                choice["text"] = choice.get("text", "") + piece["text"]
            if isinstance(piece.get("logprobs"), dict):
                join(choice.setdefault("logprobs", {}), piece["logprobs"])
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def join(whole_one: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Put a piece behind what came before: lists and texts grow, a role stays."""
    for name, value in piece.items():
        before = whole_one.get(name)
        if name == "tool_calls":
            calls = whole_one.setdefault(name, [])
            for call in value if isinstance(value, list) else ():
                if isinstance(call, dict) and (call.get("id") or is_new(call, calls)):
                    calls.append(call)  # later pieces of a call bring arguments alone
        elif isinstance(before, list) and isinstance(value, list):
            whole_one[name] = [*before, *value]
        elif isinstance(before, str) and isinstance(value, str) and name != "role":
            whole_one[name] = f"{before}{value}"
        elif value is not None:
            whole_one[name] = value


def is_new(call: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a piece without an identifier begins a call; an API without
    places means the last one."""
    return call.get("index") != forms.LAST and all(
        call.get("index") != one.get("index") for one in before
    )


def is_word(value: Any) -> bool:
    """A text that is not empty."""
    return isinstance(value, str) and value != ""


def is_count(value: Any) -> bool:
    """A number that is no sign."""
    return type(value) in (int, float) and value >= 0


def is_the_assistants(choice: Mapping[str, Any]) -> bool:
    """Whether a chat's choice says so."""
    message = choice.get("message")
    return isinstance(message, dict) and message.get("role") == "assistant"


def tokens_of(parsed: Mapping[str, Any]) -> tuple[int, int]:
    """Counted tokens of prompt and answer; -1 where they are not said or do not add up."""
    usage = parsed.get("usage")
    prompt, generated, total = (
        whole_answers.count_of(usage, name) for name in whole_answers.COUNTS
    )
    if isinstance(usage, dict) and "total_tokens" not in usage:  # not every API says it
        total = (prompt or 0) + (generated or 0)
    if prompt is None or generated is None or total != prompt + generated:
        return -1, -1
    return prompt, generated


def asks_counts(body: Mapping[str, Any]) -> bool:
    """Whether an answer has to count its tokens: a stream does where it was asked to."""
    options = body.get("stream_options")
    return not body.get("stream") or (
        isinstance(options, dict) and bool(options.get("include_usage"))
    )


def asks_logprobs(body: Mapping[str, Any]) -> bool:
    """Whether log probabilities were asked for."""
    asked = body.get("logprobs")
    return asked is not None and asked is not False


def asks_top(body: Mapping[str, Any]) -> bool:
    """Whether the likeliest tokens were asked for, too."""
    asked = body.get("top_logprobs", body.get("logprobs"))
    return type(asked) is int and asked > 0


def score_tokens(choice: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    """Tokens of a choice with their log probabilities; the echoed prompt's first has none."""
    said = choice.get("logprobs")
    if not isinstance(said, dict):
        return []
    content = said.get("content")
    if isinstance(content, list):
        rows = [one if isinstance(one, dict) else {} for one in content]
        return [(str(one.get("token")), one.get("logprob")) for one in rows]
    tokens, values = said.get("tokens"), said.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        return []
    return [(str(token), value) for token, value in zip(tokens, values, strict=True)]


def is_sound(pairs: Sequence[tuple[str, float | None]]) -> bool:
    """Whether these can be log probabilities."""
    values = [value for _, value in pairs[bool(pairs) and pairs[0][1] is None :]]
    return bool(values) and all(map(is_logprob, values))


def is_logprob(value: Any) -> bool:
    """Whether a number can be the logarithm of a probability. JSON has no NaN."""
    return type(value) in (int, float) and value <= ROUNDING


def has_likeliest(choice: Mapping[str, Any]) -> bool:
    """Whether each token of a choice comes with the likeliest ones."""
    said = choice.get("logprobs")
    said = said if isinstance(said, dict) else {}
    content, tops = said.get("content"), said.get("top_logprobs")
    if isinstance(content, list):
        tops = [one.get("top_logprobs") for one in content if isinstance(one, dict)]
    return isinstance(tops, list) and bool(tops) and all(tops[tops[0] is None :])


def has_call_ids(choices: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are tool calls, and each of a choice has an identifier of its own."""
    found = False
    for choice in choices:
        message = choice.get("message")
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        listed = calls if isinstance(calls, list) else ()
        ids = [one.get("id") for one in listed if isinstance(one, dict)]
        if not all(map(is_word, ids)) or len(set(ids)) != len(ids):
            return False
        found = found or bool(ids)
    return found


def vectors_of(parsed: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    """The vectors of an answer of /v1/embeddings, in numbers or in base64; empty: it has none."""
    rows = parsed.get("data")
    vectors = []
    for row in rows if isinstance(rows, list) else ():
        vector = row.get("embedding") if isinstance(row, dict) else None
        if isinstance(vector, str):
            try:
                raw = base64.b64decode(vector, validate=True)
                vector = list(struct.unpack(f"<{len(raw) // 4}f", raw))
            except (binascii.Error, struct.error):
                return ()
        if not isinstance(vector, list) or not all(type(x) in (int, float) for x in vector):
            return ()
        vectors.append(tuple(map(float, vector)))
    return tuple(vectors)
