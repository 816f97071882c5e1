"""Reads nested mappings into frozen dataclasses: one clear error per mistake.

A field's meaning lies in its metadata, made by `setting`: the help text that `train init` writes,
choices, the smallest value, and a key that a bare scalar stands for (`task: sft`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from joymigrate.errors import JoyError, did_you_mean

T = TypeVar("T")
NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    make: Any = dataclasses.MISSING,
    example: Any = None,
) -> Any:
    """A dataclass field with its help text; `make` builds a mutable or nested default."""
    meta = {"help": help, "choices": choices, "least": least, "example": example}
    if make is not dataclasses.MISSING:
        return dataclasses.field(default_factory=make, metadata=meta)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def read(kind: type[T], raw: Any, where: str) -> T:
    """`raw` as a `kind`; `where` is the path of keys for messages, empty at the top.

    A class with `SHORT = "name"` also accepts a bare text for that field.
    """
    short = getattr(kind, "SHORT", None)
    if short is not None and isinstance(raw, str):
        raw = {short: raw}
    if not isinstance(raw, Mapping):
        raise JoyError(f"expected keys with values, got {raw!r}", where=where or None)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    rest = getattr(kind, "REST", None)  # a field that takes all other keys
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in raw.items():
        if key in fields and key != rest:
            values[key] = one(hints[key], value, join(where, key), fields[key].metadata)
        elif rest is not None:
            others[str(key)] = value
        else:
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), fields)}",
                where=where or None,
                help=f"known keys: {', '.join(fields)}",
            )
    if rest is not None:
        values[rest] = others
    for name, item in fields.items():
        needed = item.default is item.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise JoyError(
                f"'{name}' is missing", where=where or None, help=item.metadata.get("help")
            )
    return kind(**values)


def join(where: str, key: object) -> str:
    """The path of a key: `batch.size`."""
    return f"{where}.{key}" if where else str(key)


def one(hint: Any, value: Any, where: str, meta: Mapping[str, Any]) -> Any:
    """One value as its annotation says, within its choices and limits."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        hint = next(part for part in inner if part is not type(None))
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return read(typing.cast("type[Any]", hint), value, where)
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(one(inner[0], item, where, meta) for item in items)
    if hint is Any or origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if origin is not None and not isinstance(value, Mapping):
            raise JoyError(f"'{where}' takes keys with values, got {value!r}", help=meta["help"])
        return value
    return scalar(hint, value, where, meta)


def scalar(kind: type, value: Any, where: str, meta: Mapping[str, Any]) -> Any:
    """A number, a text or a truth value."""
    if kind is float and isinstance(value, str):  # YAML 1.1 reads 1e-4 as a text
        with contextlib.suppress(ValueError):
            value = float(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind in (int, float) and isinstance(value, bool)):
        raise JoyError(f"'{where}' takes {NAMES[kind]}, got {value!r}", help=meta.get("help"))
    choices = meta.get("choices") or ()
    if choices and value not in choices:
        raise JoyError(
            f"'{where}' does not know '{value}'.{did_you_mean(str(value), choices)}",
            help=f"one of {', '.join(choices)}",
        )
    least = meta.get("least")
    if least is not None and value < least:
        raise JoyError(f"'{where}' is {value}, the least is {least:g}", help=meta.get("help"))
    return value
