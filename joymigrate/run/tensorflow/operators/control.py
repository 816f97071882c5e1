"""Branches, loops, and the lists of tensors that loops fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joymigrate.run.tensorflow.operators.table import DTYPES, ints, operator, whole

Step = Callable[..., tuple[Any, ...]]


def truth(value: Any) -> bool:
    """What a condition says: a bool, a number other than 0, a text that is not empty."""
    if isinstance(value, np.ndarray):
        return bool(value.reshape(-1)[0]) if value.size == 1 else bool(value.size)
    found = value if isinstance(value, Tensor) else torch.as_tensor(value)
    return bool(found) if found.numel() == 1 else bool(found.numel())


def choose(number: Any, branches: Sequence[Step]) -> Step:
    """The branch of a number; the last one for a number that has none."""
    place = whole(number)
    return branches[place if 0 <= place < len(branches) else -1]


def loop(condition: Step, step: Step, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Step after step while the condition holds."""
    while truth(condition(*values)[0]):
        values = step(*values)
    return values


@dataclass(frozen=True)
class TensorList:
    """Tensors of one type; a place that was not set is None, and reads as zeros."""

    items: tuple[Tensor | None, ...]
    shape: tuple[int, ...]  # of an element; -1 where it is not known
    dtype: torch.dtype

    def having(self, items: Sequence[Tensor | None]) -> TensorList:
        """The same with other elements."""
        return TensorList(tuple(items), self.shape, self.dtype)

    def filled(self, wanted: Sequence[int]) -> list[Tensor]:
        """All elements, zeros for those that were not set."""
        known = [one for one in self.items if one is not None]
        shape = tuple(known[0].shape) if known else known_shape(self.shape, wanted)
        device = known[0].device if known else None
        return [
            torch.zeros(shape, dtype=self.dtype, device=device) if one is None else one
            for one in self.items
        ]


def known_shape(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """A shape of what two say; a length that neither knows is 0."""
    if len(first) != len(second):
        first = first if len(first) > len(second) else second
        second = first
    return tuple(max(a, b, 0) for a, b in zip(first, second, strict=True))


def shape_of(values: Any) -> tuple[int, ...]:
    """A shape as plain numbers; empty where even the rank is open."""
    found = ints(values)
    return () if found == [-1] else tuple(found)


HELD = DTYPES | {"variant": torch.uint8}  # a list may hold lists, whose type nobody asks for


@operator("TensorListReserve", host=(0, 1))
def reserve(shape: Any, count: Any, *, element_dtype: str) -> TensorList:
    """Room for a number of elements."""
    return TensorList((None,) * whole(count), shape_of(shape), HELD[element_dtype])


@operator("EmptyTensorList", host=(0, 1))
def empty(shape: Any, most: Any, *, element_dtype: str) -> TensorList:
    """A list without elements."""
    return TensorList((), shape_of(shape), HELD[element_dtype])


@operator("TensorListFromTensor", host=(1,))
def from_tensor(tensor: Tensor, shape: Any) -> TensorList:
    """A row an element."""
    return TensorList(tuple(tensor.unbind(0)), shape_of(shape), tensor.dtype)


@operator("TensorListSetItem", host=(1,))
def set_item(held: TensorList, place: Any, item: Tensor) -> TensorList:
    """One element changed; a list grows up to a place behind its end."""
    at, items = whole(place), list(held.items)
    items += [None] * (at + 1 - len(items))
    items[at] = item
    return held.having(items)


@operator("TensorListGetItem", host=(1, 2))
def get_item(held: TensorList, place: Any, shape: Any) -> Tensor:
    """One element."""
    at = whole(place)
    item = held.items[at]
    return held.filled(shape_of(shape))[at] if item is None else item


@operator("TensorListStack", host=(1,))
def stack(held: TensorList, shape: Any) -> Tensor:
    """All elements as rows."""
    wanted = shape_of(shape)
    found = held.filled(wanted)
    if not found:
        return torch.zeros((0, *known_shape(held.shape, wanted)), dtype=held.dtype)
    return torch.stack(found)


@operator("TensorListPushBack")
def push_back(held: TensorList, item: Tensor) -> TensorList:
    """One element more."""
    return held.having((*held.items, item))


@operator("TensorListPopBack", host=(1,))
def pop_back(held: TensorList, shape: Any) -> tuple[TensorList, Tensor]:
    """The list without its last element, and that."""
    last = held.items[-1]
    return held.having(held.items[:-1]), held.filled(shape_of(shape))[-1] if last is None else last


@operator("TensorListLength")
def length(held: TensorList) -> Tensor:
    """How many elements."""
    return torch.tensor(len(held.items), dtype=torch.int32)


@operator("TensorListGather", host=(1, 2))
def gather(held: TensorList, places: Any, shape: Any) -> Tensor:
    """Some elements as rows."""
    found = held.filled(shape_of(shape))
    return torch.stack([found[place] for place in ints(places)])


@operator("TensorListElementShape")
def element_shape(held: TensorList, *, shape_type: str) -> Tensor:
    """The shape of an element."""
    return torch.tensor(held.shape, dtype=DTYPES[shape_type])
