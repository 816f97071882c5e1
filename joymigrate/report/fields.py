"""Fields of a noun as plain data, in the order of a document."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any


def fields(noun: object, names: str) -> dict[str, Any]:
    """The fields that `names` lists, with blanks between them.

    `self_us:3` rounds to three decimals, `rule=id` has another name in the document than in the
    noun, `date=release.date` is a field of a field. A field that the noun lacks raises
    AttributeError: that is our bug.
    """
    found = {}
    for word in names.split():
        key, _, digits = word.partition(":")
        key, _, path = key.partition("=")
        value = attrgetter(path or key)(noun)
        if digits and value is not None:
            value = round(value, int(digits))
        found[key] = plain(value)
    return found


def plain(value: Any) -> Any:
    """A value as JSON holds it: enumerations by value, tuples as lists, paths with slashes."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return value
