"""Which kind of question a request is: its path with the fields that are asked for, the model, who
speaks how, and how much was said. Evidence is kept for each kind: see `evidence.kinds`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping
from typing import Any
from zlib import crc32

from joymigrate.run.serve.gateway.calls import GatewayCall

LABEL = 200  # characters of a kind's name
SIZES = (1_000, 4_000, 16_000)  # bytes of a question: a few words, a page, a document
LENGTHS = ("short", "a page", "long", "huge")
WORDS = 40  # characters of a value that names a kind

Key = tuple[Hashable, ...]


def key_of(call: GatewayCall) -> Key:
    """What makes a kind: the path, the fields (also whether one is false), some fields' values,
    who speaks how, and how much. Asked of every request: it makes no text."""
    body = call.parsed or {}
    get = body.get
    model, choice, effort = get("model"), get("tool_choice"), get("reasoning_effort")
    form, messages = get("response_format"), get("messages")
    spoken: frozenset[Key] = frozenset()
    if isinstance(messages, list):
        spoken = frozenset([(word(one, "role"), shape(one)) for one in messages
                            if isinstance(one, dict)])  # fmt: skip
    return (
        call.path.partition("?")[0],
        frozenset([name if value is not False else f"no {name}" for name, value in body.items()]),
        model if type(model) is str else None,
        choice if type(choice) is str else None,
        effort if type(effort) is str else None,
        word(form, "type") if isinstance(form, dict) else None,
        spoken,
        min(len(messages), 3) if isinstance(messages, list) else None,
        LENGTHS[bisect_right(SIZES, len(call.body))],
    )  # fmt: skip


def word(source: Mapping[str, Any], name: str) -> str | None:
    """A field's value where it is a text."""
    value = source.get(name)
    return value if isinstance(value, str) else None


def shape(message: Mapping[str, Any]) -> str | None:
    """Whether a message is a text (None), or which parts it has."""
    content = message.get("content")
    if isinstance(content, str):
        return None
    if not isinstance(content, list):
        return type(content).__name__
    kinds = {str(part.get("type")) for part in content if isinstance(part, dict)}
    return "parts " + "+".join(sorted(kinds))


def label_of(call: GatewayCall) -> str:
    """The name of a question's kind."""
    path, fields, model, choice, effort, form, spoken, count, size = key_of(call)
    said = {"model": model, "tool_choice": choice, "reasoning_effort": effort, "format": form}
    parts = [str(path), *sorted(fields)]  # type: ignore[call-overload]
    parts += [f"{name} {value}" for name, value in said.items() if value is not None]
    parts += sorted(f"{role} {kind or 'text'}" for role, kind in spoken)  # type: ignore[attr-defined]
    parts += [f"{count} messages"] if count is not None else []
    text = ", ".join([part[:WORDS] for part in parts] + [str(size)])
    return text if len(text) <= LABEL else f"{text[: LABEL - 9]} {crc32(text.encode()):08x}"
