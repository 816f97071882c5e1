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
from joymigrate.run.serve.evidence.answers import BackendReply
from joymigrate.run.serve.gateway import whole_answers
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.reader import COUNTS, AnswerReader, ReadChoice, count_of
from joymigrate.run.serve.web import forms

ROUNDING = 1e-4  # a log probability may be above zero by so much


def reply_of(
    read: AnswerReader,
    call: GatewayCall,
    seconds: float,
    first_byte_seconds: float | None = None,
    gap_seconds: float | None = None,
    *,
    figures: bool = True,
) -> BackendReply:
    """An answer to a `call` as answers are compared; `figures`: with what it says beside its text,
    which of a client's own answer is not kept."""
    main, whole = read.main, read.first or {}
    return BackendReply(
        200,
        read.words,
        main.finish,
        seconds,
        first_byte_seconds,
        gap_seconds,
        scores=whole_answers.scores_of(whole) if figures else (),
        places=whole_answers.places_of(whole) if figures else (),
        odd=whole_answers.oddity(read, call) is not None,
        thoughts=len(main.thoughts),
        account=account_of(read, call) if figures else None,
    )


def account_of(read: AnswerReader, call: GatewayCall) -> AnswerFigures:
    """What an answer says beside its text; of a stream all events must be kept."""
    body = call.asked
    named = {name: value for event in read.events for name, value in event.items() if value}
    asked, model = body.get("model"), named.get("model")
    account = AnswerFigures(
        asked_model=asked if isinstance(asked, str) else None,
        model=model if isinstance(model, str) and model else None,
        vectors=vectors_of(named),
    )
    if not call.strict:
        return account
    prompt, generated = tokens_of(read.usage) if asks_counts(body) else (-1, -1)
    choices, main = read.said, read.main
    echoed = echoed_in(main.text, body)
    found = {name for name in ("id", "object", "model") if is_word(named.get(name))}
    found |= {"created"} if any(is_count(event.get("created")) for event in read.events) else set()
    found |= {"usage"} if prompt > 0 and generated >= bool(main.text[echoed:]) else set()
    found |= {"echo"} if echoed else set()
    ids = [choice.call_ids for choice in choices]
    for name, sound in (
        ("role", call.chat and all(choice.role == "assistant" for choice in choices)),
        ("index", [choice.index for choice in choices] == list(range(len(choices)))),
        ("logprobs", asks_logprobs(body) and all(map(is_sound, map(score_tokens, choices)))),
        ("top_logprobs", asks_top(body) and all(map(has_likeliest, choices))),
        ("call_ids", any(ids) and all(map(are_names, ids))),
        ("reasoning", bool(main.thoughts)),
        ("wishes", whole_answers.obeys(read, call)),
    ):
        if sound and choices:
            found.add(name)
    pairs = score_tokens(main) if "logprobs" in found else ()
    return replace(
        account,
        fields=frozenset(found),
        prompt_tokens=prompt,
        answer_tokens=generated,
        logprobs=tuple((token, value) for token, value in pairs if value is not None),
        echoed=echoed,
    )


def echoed_in(text: str, body: Mapping[str, Any]) -> int:
    """Characters of the prompt at the beginning of a text, where it was to be repeated."""
    prompt = body.get("prompt") if body.get("echo") is True else None
    return len(prompt) if isinstance(prompt, str) and text.startswith(prompt) else 0


def is_word(value: Any) -> bool:
    """A text that is not empty."""
    return isinstance(value, str) and value != ""


def is_count(value: Any) -> bool:
    """A number that is no sign."""
    return type(value) in (int, float) and value >= 0


def tokens_of(usage: Mapping[str, Any] | None) -> tuple[int, int]:
    """Counted tokens of prompt and answer; -1 where they are not said or do not add up."""
    prompt, generated, total = (count_of(usage, name) for name in COUNTS)
    if usage is not None and "total_tokens" not in usage:  # not every API says it
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


def score_tokens(choice: ReadChoice) -> list[tuple[str, float | None]]:
    """Tokens of a choice with their log probabilities; the echoed prompt's first has none."""
    found: list[tuple[str, float | None]] = []
    for said in choice.logprobs:
        content, tokens, values = (
            said.get(name) for name in ("content", "tokens", "token_logprobs")
        )
        if isinstance(content, list):
            rows = map(forms.mapping, content)
            found += [(str(one.get("token")), one.get("logprob")) for one in rows]
        elif isinstance(tokens, list) and isinstance(values, list) and len(tokens) == len(values):
            found += [(str(token), value) for token, value in zip(tokens, values, strict=True)]
    return found


def is_sound(pairs: Sequence[tuple[str, float | None]]) -> bool:
    """Whether these can be log probabilities."""
    values = [value for _, value in pairs[bool(pairs) and pairs[0][1] is None :]]
    return bool(values) and all(map(is_logprob, values))


def is_logprob(value: Any) -> bool:
    """Whether a number can be the logarithm of a probability. JSON has no NaN."""
    return type(value) in (int, float) and value <= ROUNDING


def has_likeliest(choice: ReadChoice) -> bool:
    """Whether each token of a choice comes with the likeliest ones."""
    tops: list[Any] = []
    for said in choice.logprobs:
        content, listed = said.get("content"), said.get("top_logprobs")
        if isinstance(content, list):
            listed = [one.get("top_logprobs") for one in forms.rows_in(content)]
        tops += listed if isinstance(listed, list) else ()
    return bool(tops) and all(tops[tops[0] is None :])


def are_names(ids: Sequence[Any]) -> bool:
    """Whether all tool calls of a choice have an identifier of their own."""
    return all(map(is_word, ids)) and len(set(ids)) == len(ids)


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
