"""Fields of a noun as plain data, in the order of a document."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any

from joymigrate.language import Text

SCALARS = (str, int, float, bool, Text)  # the most frequent ones


def fields(noun: object, names: str) -> dict[str, Any]:
    """The fields that `names` lists, with blanks between them.

    `self_us:3` rounds to three decimals, `rule=id` has another name in the document than in the
    noun, `date=release.date` is a field of a field. A field that the noun lacks raises
    AttributeError: that is our bug.
    """
    found = {}
    for key, read, digits in read_names(names):
        value = read(noun)
        if digits is not None and value is not None:
            value = round(value, digits)
        found[key] = plain(value)
    return found


@functools.cache
def read_names(names: str) -> tuple[tuple[str, Callable[[object], Any], int | None], ...]:
    """The key in the document, what reads the noun's field, and the decimals, of each name."""
    found = []
    for word in names.split():
        key, _, digits = word.partition(":")
        key, _, path = key.partition("=")
        found.append((key, attrgetter(path or key), int(digits) if digits else None))
    return tuple(found)


def plain(value: Any) -> Any:
    """A value as JSON holds it: enumerations by value, tuples as lists, paths with slashes."""
    if value is None or type(value) in SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return value
