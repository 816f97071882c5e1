"""One request: its tensors checked against the signature before anything runs.

Every mistake names the input. Arrays stay numpy views of the body: the one copy is into the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from joymigrate.run.serve.kserve.tensors import refuse
from joymigrate.run.serve.ranking.cost import BatchSizes
from joymigrate.run.serve.ranking.signature import (
    CANDIDATE,
    DERIVED,
    JAGGED,
    LENGTHS,
    OFFSETS,
    OWNER,
    PADDED,
    SEQUENCE,
    USER,
    Input,
    ModelSignature,
)
from joymigrate.run.serve.web.errors import HttpRefusal

Arrays = dict[str, "np.ndarray[Any, Any]"]


@dataclass(slots=True, eq=False)
class RankingRequest:
    """A checked request. `deadline` in seconds of the monotonic clock; `key` names its user."""

    arrays: Arrays
    sizes: BatchSizes
    deadline: float = math.inf
    key: str = ""


def check(
    signature: ModelSignature,
    given: Mapping[str, Any],
    *,
    key: str = "",
    deadline: float = math.inf,
) -> RankingRequest:
    """A request from named arrays; raises `HttpRefusal` with the name of the input at fault."""
    for name in given:
        if name not in signature.by_name:
            names = ", ".join(one.name for one in signature.inputs)
            raise refuse(name, f"the model has no such input; it has {names}")
    arrays: Arrays = {}
    for one in signature.inputs:
        array = given.get(one.name)
        if array is None:
            if one.role in DERIVED:
                continue
            raise HttpRefusal(400, f"input '{one.name}' is missing", param=one.name)
        check_array(one, array)
        arrays[one.name] = array
    rows, owners = (count(signature, arrays, axis) for axis in (CANDIDATE, USER))
    candidates = 1 if rows is None else rows
    users = 1 if owners is None else owners
    if candidates == 0:
        name = next(one.name for one in signature.inputs if one.axis == CANDIDATE)
        raise refuse(name, "there are no candidates")
    fill(signature, arrays, candidates, users)
    length, tokens = lengths_of(signature, arrays)
    return RankingRequest(arrays, BatchSizes(candidates, users, length, tokens), deadline, key)


def check_array(one: Input, array: np.ndarray[Any, Any]) -> None:
    """Type, shape, finite numbers, ids within their bounds."""
    if array.dtype.name != one.held:
        raise refuse(one.name, f"the type is {one.dtype}, got {array.dtype.name}")
    if array.ndim != len(one.shape) or any(
        size is not None and size != there
        for size, there in zip(one.shape, array.shape, strict=True)
    ):
        wanted = [-1 if size is None else size for size in one.shape]
        raise refuse(one.name, f"the shape is {wanted}, got {list(array.shape)}")
    if array.size == 0:
        return
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise refuse(one.name, "a number is not finite (NaN or infinite)")
    if one.ids is not None:
        check_ids(one, array)


def check_ids(one: Input, array: np.ndarray[Any, Any]) -> None:
    """Whole numbers from 0 below the bound (of their column)."""
    if array.min() < 0:
        raise refuse(one.name, f"the id {array.min()} is negative")
    if isinstance(one.ids, int):
        if array.max() >= one.ids:
            raise refuse(one.name, f"the id {array.max()} is out of range: 0 to {one.ids - 1}")
        return
    highest = array.reshape(-1, array.shape[-1]).max(0)
    for column, (value, bound) in enumerate(zip(highest, one.ids or (), strict=False)):
        if value >= bound:
            raise refuse(
                one.name, f"the id {value} of column {column} is out of range: 0 to {bound - 1}"
            )


def count(signature: ModelSignature, arrays: Arrays, axis: str) -> int | None:
    """How many candidates or users there are; all inputs say the same."""
    found: int | None = None
    first = ""
    for one in signature.inputs:
        if one.axis != axis or one.name not in arrays:
            continue
        size = arrays[one.name].shape[0] - (one.role == OFFSETS)
        if found is None:
            found, first = size, one.name
        elif size != found:
            raise refuse(one.name, f"the first dimension has {size} {axis}s, '{first}' has {found}")
    return found


def fill(signature: ModelSignature, arrays: Arrays, candidates: int, users: int) -> None:
    """Owners, lengths and offsets that were left out; checks of those that came."""
    for one in signature.inputs:
        if one.role == OWNER:
            if one.name not in arrays:
                if users != 1:
                    raise refuse(one.name, f"{users} users: say which one each candidate is for")
                arrays[one.name] = np.zeros(candidates, one.dtype)
            owner = arrays[one.name]
            if owner.min() < 0 or owner.max() >= users:
                raise refuse(one.name, f"an owner is out of range: 0 to {users - 1}")
        elif one.role in (LENGTHS, OFFSETS):
            fill_lengths(one, signature.by_name[one.of], arrays, users)


def fill_lengths(one: Input, sequence: Input, arrays: Arrays, users: int) -> None:
    """Lengths or offsets of a sequence: derived for one user, checked when they came."""
    values = arrays[sequence.name]
    room = values.shape[0] if sequence.layout == JAGGED else values.shape[1]
    if one.name not in arrays:
        if sequence.layout == JAGGED and users != 1:
            raise refuse(one.name, f"{users} users: say how '{sequence.name}' is divided")
        many = values.shape[0] if sequence.layout == PADDED else 1
        made = np.full(many, room, one.dtype)
        arrays[one.name] = made if one.role == LENGTHS else starts_of(made)
        return
    array = arrays[one.name]
    lengths = array if one.role == LENGTHS else np.diff(array)
    if lengths.size and lengths.min() < 0:
        raise refuse(one.name, "a length is negative")
    if sequence.layout == PADDED and lengths.size and lengths.max() > room:
        raise refuse(one.name, f"a length is {lengths.max()}, '{sequence.name}' has {room}")
    if sequence.layout == JAGGED and int(lengths.sum()) != room:
        raise refuse(
            one.name, f"the lengths sum to {int(lengths.sum())}, '{sequence.name}' has {room}"
        )
    if one.role == OFFSETS and array.size and array[0] != 0:
        raise refuse(one.name, "the first offset is 0")


def starts_of(lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Offsets [users + 1] of lengths [users]."""
    return np.concatenate([np.zeros(1, lengths.dtype), np.cumsum(lengths, dtype=lengths.dtype)])


def lengths_of(signature: ModelSignature, arrays: Arrays) -> tuple[int, int]:
    """The longest padded length, and the tokens of jagged sequences."""
    length = tokens = 0
    for one in signature.inputs:
        if one.role == SEQUENCE and one.layout == PADDED:
            length = max(length, arrays[one.name].shape[1])
        elif one.role == SEQUENCE:
            tokens += arrays[one.name].shape[0]
    return length, tokens
