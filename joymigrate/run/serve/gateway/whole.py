"""Judges answers that come in one piece: valid JSON, no error, a reason to end, no garbage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from joymigrate.run.serve.gateway.failures import (
    ERROR_OBJECT,
    GARBAGE,
    INVALID_JSON,
    MISSING_FINISH,
    Broken,
    is_garbage,
)

HEADER_LENGTH = "Inference-Header-Content-Length"


def judge(body: bytes, *, strict: bool) -> dict[str, Any]:
    """The parsed answer of a status below 400; raises `Broken`."""
    try:
        parsed = orjson.loads(body)
    except ValueError as error:
        raise Broken(INVALID_JSON, str(error)) from None
    if not isinstance(parsed, dict):
        if strict:
            raise Broken(INVALID_JSON, f"a {type(parsed).__name__} instead of an object")
        return {}
    if parsed.get("error"):
        raise Broken(ERROR_OBJECT, str(parsed["error"])[:200])
    if strict:
        choices = parsed.get("choices")
        if not isinstance(choices, list):
            raise Broken(INVALID_JSON, "no choices")
        for choice in choices:
            if choice.get("finish_reason", "absent") is None:
                raise Broken(MISSING_FINISH, "finish_reason is null")
    elif not parsed:
        raise Broken(INVALID_JSON, "an empty object")
    if is_garbage(text_of(parsed)):
        raise Broken(GARBAGE)
    return parsed


def json_part(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The JSON of a KServe answer with binary tensors behind it; else the whole body."""
    length = headers.get(HEADER_LENGTH, "")
    return body[: int(length)] if length.isdecimal() else body


def text_of(parsed: dict[str, Any]) -> str:
    """The text of the first choice, or of a Triton answer."""
    choices = parsed.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message") or {}
        text = message.get("content") if message else choices[0].get("text")
        return text if isinstance(text, str) else ""
    text = parsed.get("text_output")
    return text if isinstance(text, str) else ""


def is_silent(parsed: dict[str, Any]) -> bool:
    """Whether no choice of a chat or completion answer says anything at all."""
    for choice in parsed.get("choices") or ():
        message = choice.get("message") or choice
        said = ("content", "text", "tool_calls", "function_call", "reasoning_content", "reasoning",
                "refusal", "audio")  # fmt: skip
        if any(message.get(name) for name in said) or choice.get("prompt_logprobs"):
            return False
    return True


def words_of(parsed: dict[str, Any]) -> str:
    """All that the first choice says, its tool calls included: what two answers are compared by."""
    choices = parsed.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message") or {}
        calls = message.get("tool_calls") or ()
        named = [call.get("function") for call in calls if isinstance(call, dict)]
        spoken = [message.get("reasoning_content") or "", text_of(parsed)]
        return "".join([*spoken, orjson.dumps(named).decode() if named else ""])
    return text_of(parsed)


def scores_of(parsed: dict[str, Any]) -> tuple[float, ...]:
    """The first output of a ranking answer in JSON (/v1/rank, KServe v2); empty: it has none."""
    outputs = parsed.get("outputs")
    if isinstance(outputs, dict):
        found = next(iter(outputs.values()), None)
    else:
        first = outputs[0] if isinstance(outputs, list) and outputs else None
        found = first.get("data") if isinstance(first, dict) else None
    if not isinstance(found, list) or not all(type(one) in (int, float) for one in found):
        return ()
    return tuple(float(one) for one in found)


def finish_of(parsed: dict[str, Any]) -> str | None:
    """Why the first choice ended."""
    choices = parsed.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        reason = choices[0].get("finish_reason")
        return str(reason) if reason else None
    return None


def usage_of(parsed: dict[str, Any]) -> tuple[int, int]:
    """Generated and prompt tokens, as far as the answer says."""
    usage = parsed.get("usage") or {}
    return (
        int(usage.get("completion_tokens") or 0),
        int(usage.get("prompt_tokens") or 0),
    )
