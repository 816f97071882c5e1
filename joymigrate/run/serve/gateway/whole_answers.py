"""Judges answers that come in one piece: valid JSON, no error, a reason to end, no garbage.

What is read here was written by a server that may be any: every value may be of any type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.run.serve.evidence.failures import (
    ERROR_OBJECT,
    GAVE_UP,
    INVALID_JSON,
    MISSING_FINISH,
    BackendFailure,
)
from joymigrate.run.serve.gateway.arguments import misfit
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.reader import COUNTS, AnswerReader, count_of
from joymigrate.run.serve.web import forms

CALLED = ("tool_calls", "stop")  # how an answer with whole tool calls ends
# With these a stop string may stand in a sound text.
KEEPS_STOP = ("include_stop_str_in_output", "no_stop_trim", "echo", "min_tokens")
HEADER_LENGTH = "Inference-Header-Content-Length"


def judge(body: bytes, call: GatewayCall) -> AnswerReader:
    """The answer of a status below 400, read in a chat's form; raises `BackendFailure`."""
    import orjson  # comparing what answers say needs no extra: `serve simulate`

    form = call.api.form
    try:
        parsed = orjson.loads(body)
    except ValueError as error:
        raise BackendFailure(INVALID_JSON, str(error)) from None
    if not isinstance(parsed, dict):
        if form is not None:
            raise BackendFailure(INVALID_JSON, f"a {type(parsed).__name__} instead of an object")
        return AnswerReader()
    parsed = parsed if form is None else form.whole(parsed)
    if parsed.get("error"):
        raise BackendFailure(ERROR_OBJECT, str(parsed["error"])[:200])
    if form is None:
        return AnswerReader.of(parsed)
    if not form.speaks:
        if wrong := form.sound(parsed, call.parsed or {}):
            raise BackendFailure(INVALID_JSON, wrong)
        return AnswerReader.of(parsed)
    choices = parsed.get("choices")
    if not isinstance(choices, list):
        raise BackendFailure(INVALID_JSON, "no choices")
    for choice in choices:
        if not isinstance(choice, dict):
            raise BackendFailure(INVALID_JSON, f"a choice is a {type(choice).__name__}")
        reason = choice.get("finish_reason", "absent")
        if reason is None:
            raise BackendFailure(MISSING_FINISH, "finish_reason is null")
        if reason in GAVE_UP or choice.get("error"):
            raise BackendFailure(ERROR_OBJECT, f"finish_reason is {reason}")
    return AnswerReader.of(parsed)


def json_part(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The JSON of a KServe answer with binary tensors behind it; else the whole body."""
    length = headers.get(HEADER_LENGTH, "")
    return body[: int(length)] if length.isdecimal() else body


def oddity(read: AnswerReader, call: GatewayCall) -> str | None:
    """What no program could do with an answer that speaks: with its number of choices, its tool
    calls and, of a whole one, its shape; None: nothing is odd."""
    if not call.strict or (read.WHOLE and not read.choices):
        return None
    if len(read.said) < call.choices:
        return "fewer choices"
    shape = oddity_of_shape(read.first or {}, call) if read.WHOLE else None
    return shape or oddity_of_calls(read, call)


def oddity_of_shape(parsed: dict[str, Any], call: GatewayCall) -> str | None:
    """In which way a whole chat or completion answer has another shape than its API gives it."""
    choices = parsed.get("choices") or []
    if len(choices) > call.choices:
        return "more choices"
    for choice in choices:
        if call.chat:
            message = choice.get("message")
            if not isinstance(message, dict):
                return "no message"
            content = message.get("content")
            if content is not None and not isinstance(content, str):
                return f"content is a {type(content).__name__}"
        elif not isinstance(choice.get("text"), str):
            return "no text"
    usage = parsed.get("usage")
    if usage is not None and not isinstance(usage, dict):
        return f"usage is a {type(usage).__name__}"
    if any(name in (usage or {}) and count_of(usage, name) is None for name in COUNTS):
        return "usage without counts"
    return None


def oddity_of_calls(read: AnswerReader, call: GatewayCall) -> str | None:
    """What no program could do with the whole tool calls of an answer; None: nothing is odd."""
    if not read.tools or not call.chat:
        return None
    called = [choice for choice in read.said if choice.finish in CALLED]
    return next((odd for one in called if (odd := odd_calls(one.functions, call))), None)


def obeys(read: AnswerReader, call: GatewayCall) -> bool:
    """Whether a sound answer goes against no wish of its request."""
    main = read.main
    return not find_disobedience(read, call) and not misuse(main.functions, main.finish, call)


def find_disobedience(read: AnswerReader, call: GatewayCall) -> str | None:
    """What of a sound answer's texts and length goes against the request."""
    generated = count_of(read.usage, "completion_tokens") or 0
    found = (disobedience(choice.text, generated, call) for choice in read.said)
    return next((odd for odd in found if odd), None)


def disobedience(text: str, generated: int, call: GatewayCall) -> str | None:
    """Which wish of the request a text goes against, where every server can keep it: stop strings
    and the length. `generated`: tokens of all choices, 0 where nobody says."""
    body = call.asked
    stop = body.get("stop")
    if stop and not any(map(body.get, KEEPS_STOP)):
        stops = stop if isinstance(stop, list) else [stop]
        if any(isinstance(one, str) and one and one in text for one in stops):
            return "a stop string in the text"
    most = call.most
    if type(most) is int and most > 0 and generated > most * call.choices and not call.searches:
        return "more tokens than were asked for"
    return None


def misuse(functions: Sequence[tuple[Any, Any]], finish: Any, call: GatewayCall) -> str | None:
    """Which wish about tools an answer with these calls goes against. Some models do so now and
    then: it is held against what the other backend does."""
    import orjson

    body = call.asked
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not call.chat or not isinstance(tools, list) or not tools:
        return None
    if functions and choice == "none":
        return "a tool call, which was forbidden"
    allowed = choice.get("allowed_tools", choice) if isinstance(choice, dict) else None
    mode = allowed.get("mode", "required") if isinstance(allowed, dict) else choice
    due = mode == "required"
    if due and not functions and finish in CALLED:
        return "no tool call, which was required"
    if len(functions) > 1 and body.get("parallel_tool_calls") is False:
        return "several tool calls, where one was allowed"
    if finish not in CALLED:
        return None
    known = [tool["function"] for tool in tools
             if isinstance(tool, dict) and isinstance(tool.get("function"), dict)]  # fmt: skip
    schemas = {str(one.get("name")): one.get("parameters") for one in known}
    for name, arguments in functions:
        try:
            value = orjson.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except ValueError:
            continue  # `odd_calls` says it
        if odd := misfit(value, schemas.get(str(name))):
            return f"a tool call with {odd}"
    return None


def odd_calls(functions: Sequence[tuple[Any, Any]], call: GatewayCall) -> str | None:
    """What no program could do with whole tool calls; None: nothing is odd."""
    import orjson

    offered = forms.rows_in(call.asked.get("tools"))
    known = {str(tool[kind].get("name")): kind for tool in offered for kind in forms.OFFERED
             if isinstance(tool.get(kind), dict)}  # fmt: skip
    every = len(known) == len(offered)  # no tool has names that only the server knows
    for name, arguments in functions:
        if known and every and str(name) not in known:
            return "a call of a tool that was not offered"
        try:
            if not isinstance(arguments, dict | str):
                return f"arguments of a tool call are a {type(arguments).__name__}"
            if arguments and isinstance(arguments, str) and known.get(str(name)) != "custom":
                orjson.loads(arguments)
        except ValueError:
            return "a tool call whose arguments are no JSON"
    return None


def scores_of(parsed: dict[str, Any]) -> tuple[float, ...]:
    """The first output of a ranking answer in JSON (/v1/rank, KServe v2), or the scores of
    /v1/score and /v1/rerank in the order of what was asked; empty: it has none."""
    if rows := scored_rows(parsed):
        return tuple(score for _, score in rows)
    outputs = parsed.get("outputs")
    if isinstance(outputs, dict):
        found = next(iter(outputs.values()), None)
    else:
        first = outputs[0] if isinstance(outputs, list) and outputs else None
        found = first.get("data") if isinstance(first, dict) else None
    if not isinstance(found, list) or not all(type(one) in (int, float) for one in found):
        return ()
    return tuple(float(one) for one in found)


def places_of(parsed: dict[str, Any]) -> tuple[int, ...]:
    """Which texts the scores of /v1/score and /v1/rerank belong to; empty: all, in their order."""
    return tuple(place for place, _ in scored_rows(parsed))


def scored_rows(parsed: dict[str, Any]) -> list[tuple[int, float]]:
    """Place and score of each text that an answer of /v1/score or /v1/rerank names."""
    for rows, name in (("data", "score"), ("results", "relevance_score")):
        if found := scores_by_index(parsed.get(rows), name):
            return found
    return []


def scores_by_index(rows: Any, name: str) -> list[tuple[int, float]]:
    """Scores of rows that say which text they belong to, in the order of the texts."""
    found = []
    for row in rows if isinstance(rows, list) else ():
        score = row.get(name) if isinstance(row, dict) else None
        if not isinstance(score, int | float) or not isinstance(row.get("index"), int):
            return []
        found.append((row["index"], float(score)))
    return sorted(found)
