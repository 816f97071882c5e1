"""Declared normalisers: what may differ in a text without making it another answer."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from joymigrate.errors import JoyError, did_you_mean

FENCE = re.compile(r"\s*```[\w-]*\s*\n(.*?)\n?\s*```\s*", re.DOTALL)


class Malformed:
    """What stands for a text that should be JSON and is not; equal to nothing, not even itself."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


def whitespace(text: str) -> str:
    """Runs of white space as one space, none at the ends."""
    return " ".join(text.split())


def compatible(text: str) -> str:
    """Unicode form NFKC: full-width letters, ligatures and composed accents as one form."""
    return unicodedata.normalize("NFKC", text)


def punctuation(text: str) -> str:
    """Without punctuation signs of any script; what they kept apart stays apart."""
    spaced = "".join(" " if unicodedata.category(sign)[0] == "P" else sign for sign in text)
    return " ".join(spaced.split())


def fence(text: str) -> str:
    """Without the Markdown fence around the whole text."""
    match = FENCE.fullmatch(text)
    return match.group(1) if match else text


def structure(text: str) -> str:
    """A JSON text in one spelling: sorted keys, no spaces. Other texts as they are."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.dumps(
            json.loads(text), sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
    except ValueError:
        return text


# In the order in which they are applied, whatever order they are named in.
NORMALISERS: dict[str, Callable[[str], str]] = {
    "fence": fence,
    "json": structure,
    "unicode": compatible,
    "case": str.casefold,
    "punctuation": punctuation,
    "whitespace": whitespace,
}


def select(names: Sequence[str]) -> tuple[str, ...]:
    """The named normalisers, in their order; `JoyError` with the nearest name for others."""
    for name in names:
        if name not in NORMALISERS:
            raise JoyError(
                f"there is no normaliser '{name}'.{did_you_mean(name, NORMALISERS)}",
                help=f"--normalise takes {', '.join(NORMALISERS)}",
            )
    return tuple(name for name in NORMALISERS if name in names)


def normalise_value(value: Any, names: Sequence[str]) -> Any:
    """`value` with every text in it normalised; keys of objects stay as they are."""
    if isinstance(value, str):
        for name in names:
            value = NORMALISERS[name](value)
        return value
    if isinstance(value, list):
        return [normalise_value(item, names) for item in value]
    if isinstance(value, dict):
        return {key: normalise_value(item, names) for key, item in value.items()}
    return value


def open_json(value: Any) -> Any:
    """The object or list that a JSON text holds; `Malformed` for a text that begins like one."""
    if not isinstance(value, str):
        return value
    text = fence(value).strip()
    if text[:1] not in ("{", "["):
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Malformed()


def field(value: Any, path: str) -> Any:
    """The value at a dotted path (`call.arguments.city`, `calls.0.name`), None where there is none.

    JSON texts are opened on the way. A value that is no object is `Malformed`: a sentence where a
    call was expected.
    """
    value = open_json(value)
    if isinstance(value, str | int | float | bool) or value is None:
        return Malformed()
    for part in path.split("."):
        value = open_json(value)
        if isinstance(value, Malformed):
            return value
        if isinstance(value, list) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(part)
        else:
            return None
    return value


def same(a: Any, b: Any) -> bool:
    """Equality as answers: 1 is 1.0 but not true, NaN is NaN, malformed is nothing."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)
