"""Plain data into a document's class: one clear error per mistake, with file, line and key."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema.fields import (
    POWER,
    choices_of,
    fields_of,
    is_mapping,
    is_record,
    is_sequence,
    options_of,
    rest_of,
)
from joymigrate.schema.registry import find, of_class
from joymigrate.schema.source import DocumentSource, load_file, spell_path

T = TypeVar("T")
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # YAML 1.1 reads 1e-4 as a text
NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
Keys = tuple[str | int, ...]
NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def read_file(kind: type[T], path: Path, what: str = "document", help: str | None = None) -> T:
    """The document of a file. `JoyError` names the file, the line, the key and the nearest name."""
    raw, source = load_file(path, what, help)
    return read(kind, raw, source, help=help)


def read(
    kind: type[T],
    raw: Any,
    source: DocumentSource | str = "",
    *,
    keys: Keys = (),
    help: str | None = None,
) -> T:
    """`raw` as a `kind`. `keys` lead to it from the top of the source.

    A class with `SHORT = "name"` also takes a bare text for that field; one with
    `REST = "options"` takes all other keys into that field; one with `VERSIONED = True` must
    have its `schema` key; one with `ITEMS = True` is one item of a list (`read_items`). What a
    class's `__post_init__` raises is placed in the file; its `where` may name a key of the class.
    `help` stands under messages that have no help of their own.
    """
    source = DocumentSource(source) if isinstance(source, str) else source
    result: T = DocumentReader(source, help).record(kind, raw, keys)
    return result


def read_items(
    kind: type[T], raw: Sequence[Any], source: DocumentSource | str = ""
) -> tuple[T, ...]:
    """A document that is a list: a class with `ITEMS = True` is one item of it."""
    return tuple(read(kind, item, source, keys=(number,)) for number, item in enumerate(raw))


def mistakes(kind: type[Any], raw: Any, source: DocumentSource | str = "") -> list[JoyError]:
    """Every mistake of a document, in its order; empty when it can be read."""
    source = DocumentSource(source) if isinstance(source, str) else source
    reader = DocumentReader(source, None, [])
    if not getattr(kind, "ITEMS", False):
        with contextlib.suppress(JoyError):
            reader.record(kind, raw, ())
    elif isinstance(raw, list):
        for number, item in enumerate(raw):
            with contextlib.suppress(JoyError):
                reader.record(kind, item, (number,))
    else:
        reader.wrong((), f"expected a list, got {quote(raw)}")
    return reader.found or []


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentReader:
    """Reads one document. With a list in `found` it goes on after a mistake and collects them."""

    source: DocumentSource
    help: str | None = None
    found: list[JoyError] | None = None

    def wrong(self, keys: Keys, what: str, help: str | None = None) -> JoyError:
        """A mistake at `keys`; in `found` as well, where mistakes are collected."""
        error = JoyError(what, where=self.source.at(keys), help=help or self.help)
        if self.found is not None:
            self.found.append(error)
        return error

    def record(self, kind: type[Any], raw: Any, keys: Keys) -> Any:
        """A class with fields from a mapping."""
        short = getattr(kind, "SHORT", None)
        if short is not None and not isinstance(raw, Mapping):
            raw = {short: raw}
        if not isinstance(raw, Mapping):
            raise self.wrong(keys, f"expected keys with values, got {quote(raw)}")
        known, rest = fields_of(kind), rest_of(kind)
        document = of_class(kind)
        if document and getattr(kind, "VERSIONED", False) and "schema" not in raw:
            raise self.wrong(keys, "'schema' is missing", f"schema: {document.schema}")
        values: dict[str, Any] = {}
        others: dict[Any, Any] = {}
        good = True
        for key, value in raw.items():
            try:
                if key == "schema" and document and "schema" not in known:
                    if value != document.schema:
                        text = f"the schema is {quote(value)}, expected {document.schema}"
                        raise self.wrong((*keys, "schema"), text)
                elif key in known and not (rest and key == rest.key):
                    item = known[key]
                    if value is None and item.default is not dataclasses.MISSING:
                        continue  # `key:` without a value says nothing
                    values[item.name] = self.value(item.hint, value, (*keys, key), item.meta)
                    if item.meta.get("part"):
                        kind_of_part = find(item.meta["part"]).kind
                        self.value(kind_of_part, value, (*keys, key))
                elif rest is not None:
                    others[key] = value
                elif not getattr(kind, "OPEN", False):
                    raise self.unknown(keys, key, [*known])
            except JoyError:
                if self.found is None:
                    raise
                good = False
        if rest is not None:
            values[rest.name] = self.value(rest.hint, others, keys, rest.meta)
        for name, item in known.items():
            if item.required and item.name not in values and (name not in raw or raw[name] is None):
                error = self.wrong(keys, f"'{name}' is missing", item.meta.get("help"))
                if self.found is None:
                    raise error
                good = False
        if not good:
            raise JoyError("not read further")
        made = self.made(kind, values, keys)
        for name, item in known.items():
            only = item.meta.get("only")
            if (
                only
                and getattr(made, only[0]) != only[1]
                and values.get(item.name, item.default) != item.default
            ):
                raise self.wrong(
                    (*keys, name),
                    f"'{name}' counts with {only[0]}: {only[1]} alone, and {only[0]} is "
                    f"{getattr(made, only[0])}",
                    f"remove '{name}', or use {only[0]}: {only[1]}",
                )
        return made

    def unknown(self, keys: Keys, key: object, known: Sequence[str]) -> JoyError:
        """The mistake of a key that nobody reads."""
        return self.wrong(
            (*keys, str(key)),
            f"unknown key '{key}'.{did_you_mean(str(key), known)}",
            self.help or f"known keys: {', '.join(known)}",
        )

    def made(self, kind: type[Any], values: Mapping[str, Any], keys: Keys) -> Any:
        """The class itself; what its `__post_init__` refuses gets its place."""
        try:
            return kind(**values)
        except JoyError as error:
            parts = error.where.split(".") if error.where else []
            below = (*keys, *(int(part) if part.isdigit() else part for part in parts))
            raise self.wrong(below, error.what, error.help) from None

    def value(self, hint: Any, value: Any, keys: Keys, meta: Mapping[str, Any] = NOTHING) -> Any:
        """One value as its annotation says, within its choices and limits."""
        options = options_of(hint)
        if value is None and type(None) in options:
            return None
        hints = [option for option in options if option is not type(None)]
        hint = next((option for option in hints if suits(option, value, meta)), hints[0])
        if hint is Any:
            return value
        if is_record(hint):
            return self.record(hint, value, keys)
        if is_mapping(hint):
            return self.table(hint, value, keys, meta)
        if is_sequence(hint):
            return self.items(hint, value, keys, meta)
        choices = choices_of(hint, meta)
        if choices:
            return self.chosen(hint, value, choices, keys, meta)
        wanted = " or ".join(map(describe_hint, hints))
        return self.scalar(hint, value, keys, meta, wanted)

    def table(self, hint: Any, value: Any, keys: Keys, meta: Mapping[str, Any]) -> Any:
        """A mapping of names to values of one kind."""
        if not isinstance(value, Mapping):
            text = f"'{last(keys)}' takes keys with values, got {quote(value)}"
            raise self.wrong(keys, text, meta.get("help"))
        inner = typing.get_args(hint)
        if not inner:
            return value
        made = {}
        for key, item in value.items():
            if inner[0] is int and (isinstance(key, bool) or not isinstance(key, int)):
                raise self.wrong((*keys, str(key)), f"'{key}' is not a whole number", None)
            name = key if inner[0] is int else str(key)
            made[name] = self.value(inner[1], item, (*keys, str(key)), meta)
        return made

    def items(self, hint: Any, value: Any, keys: Keys, meta: Mapping[str, Any]) -> tuple[Any, ...]:
        """A list; a single item stands for a list of one where the field says so."""
        if not isinstance(value, list | tuple):
            if not meta.get("single"):
                text = f"'{last(keys)}' takes a list, got {quote(value)}"
                raise self.wrong(keys, text, meta.get("help"))
            return (self.value(typing.get_args(hint)[0], value, keys, meta),)
        inner = typing.get_args(hint)
        if not inner:
            return tuple(value)
        made = []
        for number, item in enumerate(value):
            try:
                made.append(self.value(inner[0], item, (*keys, number), meta))
            except JoyError:
                if self.found is None:
                    raise
        if self.found is not None and len(made) < len(value):
            raise JoyError("not read further")
        return tuple(made)

    def chosen(
        self, hint: Any, value: Any, choices: Sequence[Any], keys: Keys, meta: Mapping[str, Any]
    ) -> Any:
        """One of some values."""
        if value not in choices or isinstance(value, bool) != isinstance(choices[0], bool):
            raise self.wrong(
                keys,
                f"'{last(keys)}' does not know {quote(value)}."
                f"{did_you_mean(str(value), [str(choice) for choice in choices])}",
                f"one of {', '.join(map(str, choices))}",
            )
        is_enum = isinstance(hint, type) and issubclass(hint, enum.Enum)
        return hint(value) if is_enum else value

    def scalar(
        self, kind: type, value: Any, keys: Keys, meta: Mapping[str, Any], wanted: str
    ) -> Any:
        """A number, a text or a truth value."""
        plain = number_or_text(kind, value, meta)
        if not isinstance(plain, kind) or (kind in (int, float) and isinstance(plain, bool)):
            text = f"'{last(keys)}' takes {wanted}, got {quote(value)}"
            raise self.wrong(keys, text, meta.get("help"))
        trouble = out_of_bounds(plain, meta)
        if trouble:
            raise self.wrong(keys, f"'{last(keys)}' is {quote(plain)}{trouble}", meta.get("help"))
        return plain


def describe_hint(hint: Any) -> str:
    """What an annotation takes, in words."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    if is_sequence(hint):
        return "a list"
    return NAMES.get(hint, "keys with values")


def number_or_text(kind: type, value: Any, meta: Mapping[str, Any]) -> Any:
    """The value as YAML meant it: 1 for 1.0, the texts 1e-4 and 2^-10 for numbers, 3 for the name
    "3"."""
    if kind is float and isinstance(value, str) and EXPONENT.fullmatch(value):
        return float(value)
    power = POWER.fullmatch(value) if meta.get("powers") and isinstance(value, str) else None
    if kind is float and power:
        return 2.0 ** int(power[1])
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is str and meta.get("words") and isinstance(value, int | float):
        return str(value)
    return value


def out_of_bounds(value: Any, meta: Mapping[str, Any]) -> str:
    """How a value breaks its limits, or an empty text."""
    if isinstance(value, str):
        pattern = meta.get("pattern")
        return f", which does not match {pattern}" if breaks_pattern(pattern, value) else ""
    if isinstance(value, bool):
        return ""
    if isinstance(value, float) and value != value:
        return ", not a number"
    if isinstance(value, float) and abs(value) == float("inf"):
        return ", not a finite number"
    least, most, above = meta.get("least"), meta.get("most"), meta.get("above")
    if least is not None and value < least:
        return f", the least is {least:g}"
    if above is not None and value <= above:
        return f", it must be above {above:g}"
    if most is not None and value > most:
        return f", the most is {most:,g}"
    return ""


def breaks_pattern(pattern: str | None, value: str) -> bool:
    """Whether a text does not match its pattern as a whole."""
    return bool(pattern) and re.fullmatch(pattern or "", value) is None


def suits(hint: Any, value: Any, meta: Mapping[str, Any]) -> bool:
    """Whether a value has the shape of one alternative; its inside is not looked at."""
    if hint is Any:
        return True
    if isinstance(value, Mapping):
        return is_record(hint) or is_mapping(hint)
    if isinstance(value, list | tuple):
        return is_sequence(hint)
    if is_record(hint):
        return getattr(hint, "SHORT", None) is not None
    if is_sequence(hint):
        return bool(meta.get("single"))
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if choices:
        return value in choices
    if not isinstance(hint, type) or is_mapping(hint):
        return False
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, hint) or (hint is float and isinstance(value, int))


def last(keys: Keys) -> str:
    """The key as messages name it: `lr`, `cards[2]`."""
    tail: list[str | int] = []
    for key in reversed(keys):
        tail.insert(0, key)
        if isinstance(key, str):
            break
    return spell_path(tail)


def quote(value: Any) -> str:
    """A value as messages show it; a long one is cut."""
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
