"""What a field of a document means beyond its annotation: `setting`, and what its type allows."""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

POWER = re.compile(r"2\^(-?[0-9]{1,4})")  # of two, where a field has `powers`
Choices = tuple[str, ...] | Callable[[], tuple[str, ...]]


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    make: Any = dataclasses.MISSING,
    choices: Choices = (),
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    pattern: str = "",
    example: Any = None,
    key: str = "",
    single: bool = False,
    words: bool = False,
    powers: bool = False,
    hidden: bool = False,
    part: str = "",
    only: tuple[str, Any] | None = None,
) -> Any:
    """A dataclass field with its help text and its limits.

    `make` builds a mutable or nested default. `choices` may be a function where the names are only
    known later. `least` and `most` are inclusive, `above` is not. `pattern` is a regular expression
    that the whole text must match. `key` is the name in the file where Python can't have it.
    `single`: one item may stand for a list of one. `words`: a number is taken as the text it was
    written as (`leaf: 3`). `powers`: a number may be a power of two (`2^-10`). `hidden`: never
    read from a file. `only`: a key of the same class and the value with which this one counts; it
    is refused beside another. `part` names the document that describes the value, where its owner
    stands above this module.
    """
    meta = {
        "help": help,
        "choices": choices,
        "least": least,
        "most": most,
        "above": above,
        "pattern": pattern,
        "example": example,
        "key": key,
        "single": single,
        "words": words,
        "powers": powers,
        "hidden": hidden,
        "part": part,
        "only": only,
    }
    if make is not dataclasses.MISSING:
        return dataclasses.field(default_factory=make, metadata=meta)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


@dataclasses.dataclass(frozen=True, slots=True)
class SchemaField:
    """One key of a document: its annotation resolved, whether it must be there, its metadata."""

    name: str  # of the attribute
    key: str  # in the file
    hint: Any
    required: bool
    default: Any  # MISSING where there is none
    meta: Mapping[str, Any]


KNOWN: dict[type[Any], dict[str, SchemaField]] = {}


def fields_of(kind: type[Any]) -> dict[str, SchemaField]:
    """The fields of a document's class by their key in the file; hidden ones left out."""
    if kind in KNOWN:
        return KNOWN[kind]
    hints = typing.get_type_hints(kind)
    known: dict[str, SchemaField] = {}
    for item in dataclasses.fields(kind):
        if item.metadata.get("hidden"):
            continue
        key = item.metadata.get("key") or item.name
        required = item.default is item.default_factory is dataclasses.MISSING
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        known[key] = SchemaField(item.name, key, hints[item.name], required, default, item.metadata)
    KNOWN[kind] = known
    return known


def rest_of(kind: type[Any]) -> SchemaField | None:
    """The field that takes all other keys: `REST = "options"` in the class."""
    rest = getattr(kind, "REST", None)
    return fields_of(kind)[rest] if rest else None


def options_of(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, `NoneType` among them; of anything else the hint itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def choices_of(hint: Any, meta: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that are allowed, from metadata, a `Literal` or an enumeration; empty for any."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(item.value for item in hint)
    given = meta.get("choices") or ()
    return tuple(given()) if callable(given) else tuple(given)


def is_mapping(hint: Any) -> bool:
    """Whether an annotation is a mapping of names to values."""
    return hint in (dict, Mapping) or typing.get_origin(hint) in (dict, Mapping)


def is_sequence(hint: Any) -> bool:
    """Whether an annotation is a list."""
    return hint in (tuple, list) or typing.get_origin(hint) in (tuple, list)


def is_record(hint: Any) -> bool:
    """Whether an annotation is a class with fields."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)
