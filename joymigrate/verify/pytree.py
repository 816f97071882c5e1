"""Tensors inside the arguments and results of modules: found by path, and put back changed.

Lists, tuples, named tuples, mappings, dataclasses and, with `objects`, plain objects (a cache of
keys and values) are walked; anything else is a leaf. A jagged tensor is looked at as the values
of all its parts in one tensor: its own shape is no list of numbers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

DEEPEST = 8
SCALARS = (bool, int, float, str, type(None), torch.dtype, torch.Size)


def is_object(value: Any) -> bool:
    """Whether `value` is an object of the program or of a library that may hold tensors."""
    kind = type(value)
    if not hasattr(value, "__dict__") or isinstance(value, torch.nn.Module | type):
        return False
    return kind.__module__.split(".")[0] not in ("torch", "builtins", "functools") and not callable(
        value
    )


def is_jagged(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of parts that differ in their length, without gaps between them."""
    if not tensor.is_nested or tensor.layout is not torch.jagged:
        return False
    made: Any = tensor
    return getattr(made, "_ragged_idx", 0) == 1 and made.lengths() is None


def children(value: Any, objects: bool) -> Iterator[tuple[str, Any]]:
    """(key, member) of one container; nothing for a leaf."""
    if isinstance(value, torch.Size):
        return
    if isinstance(value, Mapping):
        yield from ((str(key), member) for key, member in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        yield from ((str(index), member) for index, member in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (
            (f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if _has(value, f)
        )
    elif objects and is_object(value):
        yield from vars(value).items()


def _has(value: Any, field: Any) -> bool:
    return hasattr(value, field.name)


def walk(value: Any, path: str = "", objects: bool = False, depth: int = 0) -> Iterator[Any]:
    """(path, leaf) of everything inside `value`."""
    if isinstance(value, torch.Tensor):
        yield path, value.values() if is_jagged(value) else value
        return
    members = list(children(value, objects)) if depth < DEEPEST else []
    for key, member in members:
        yield from walk(member, f"{path}.{key}" if path else key, objects, depth + 1)
    if not members:
        yield path, value


def tensors(value: Any, objects: bool = False) -> list[tuple[str, torch.Tensor]]:
    """(path, tensor) of every tensor inside `value`."""
    if isinstance(value, torch.Tensor):
        return [("", value.values() if is_jagged(value) else value)]
    return [(p, leaf) for p, leaf in walk(value, "", objects) if isinstance(leaf, torch.Tensor)]


def scalars(value: Any) -> dict[str, Any]:
    """Numbers, texts and dtypes inside `value`, by path."""
    found = {}
    for path, leaf in walk(value):
        if isinstance(leaf, SCALARS):
            found[path] = leaf if isinstance(leaf, bool | int | float | str) else str(leaf)
    return found


def replace_scalars(value: Any, given: Mapping[str, Any], path: str = "", depth: int = 0) -> Any:
    """A copy of `value` with other leaves at the paths in `given` (as `scalars` names them)."""
    if path in given:
        return given[path]
    if isinstance(value, torch.Tensor) or depth >= DEEPEST:
        return value
    inside = f"{path}." if path else ""
    if not any(key.startswith(inside) for key in given):
        return value
    members = children(value, objects=False)
    made = {k: replace_scalars(m, given, f"{inside}{k}", depth + 1) for k, m in members}
    return rebuilt(value, made) if made else value


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call as one mapping: positions as "0", "1", names as they are."""
    return {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}


def replace_tensors(
    value: Any,
    change: Callable[[str, torch.Tensor], torch.Tensor],
    path: str = "",
    objects: bool = False,
    depth: int = 0,
) -> Any:
    """A copy of `value` whose tensors are what `change(path, tensor)` returns."""
    if isinstance(value, torch.Tensor):
        if is_jagged(value):
            jagged: Any = value
            inner = change(path, jagged.values())
            return torch.nested.nested_tensor_from_jagged(inner, jagged.offsets())
        return change(path, value)
    members = list(children(value, objects)) if depth < DEEPEST else []
    if not any(tensors(member, objects) for _, member in members):
        return value
    made = {
        key: replace_tensors(member, change, f"{path}.{key}" if path else key, objects, depth + 1)
        for key, member in members
    }
    return rebuilt(value, made)


def rebuilt(value: Any, made: dict[str, Any]) -> Any:
    """A container like `value` with the members `made`."""
    if isinstance(value, Mapping):
        new = copy.copy(value)
        for key in value:
            new[key] = made[str(key)]  # type: ignore[index]
        return new
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(**made)
    if isinstance(value, list | tuple):
        return type(value)(made.values())
    new = copy.copy(value)
    for key, member in made.items():
        object.__setattr__(new, key, member)
    return new


@contextmanager
def put_back(value: Any) -> Iterator[None]:
    """Lists, dictionaries and plain objects inside `value` hold afterwards what they held before.

    `replace_tensors` copies what holds tensors; a cache that is still empty is the program's own.
    """
    held: dict[int, tuple[Any, Any]] = {}

    def note(one: Any, depth: int) -> None:
        if isinstance(one, torch.Tensor) or id(one) in held or depth > DEEPEST:
            return
        if isinstance(one, list | dict):
            held[id(one)] = (one, copy.copy(one))
        elif hasattr(one, "__dict__") and (dataclasses.is_dataclass(one) or is_object(one)):
            held[id(one)] = (one, dict(vars(one)))
        for _, member in children(one, objects=True):
            note(member, depth + 1)

    note(value, 0)
    try:
        yield
    finally:
        for one, before in held.values():
            if isinstance(one, list):
                if len(one) != len(before) or any(
                    a is not b for a, b in zip(one, before, strict=True)
                ):
                    one[:] = before
                continue
            now = one if isinstance(one, dict) else vars(one)
            if len(now) != len(before) or any(now.get(k) is not v for k, v in before.items()):
                now.clear()
                now.update(before)
