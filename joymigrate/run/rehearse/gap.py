"""Operators whose CPU kernel lacks a dtype that the chip's kernel has: computed in a wider one.

bfloat16 and float16 go by float32; integers by float64 (exact up to 2**53); uint64 by int64, which
has the same bits for sums and products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WIDER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.uint64: torch.int64,
    torch.uint32: torch.int64,
    torch.uint16: torch.int64,
    **dict.fromkeys((torch.int8, torch.uint8, torch.int16, torch.int32), torch.float64),
    torch.int64: torch.float64,
}


def compute_wider(
    operator: Any, compute: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The result of `compute` on wider arguments, narrowed; what it writes is written back.

    Raises torch's own error where nothing wider helps.
    """
    first = next((t for t in tensors([*args, *kwargs.values()]) if t.dtype in WIDER), None)
    if first is None:
        return compute(*args, **kwargs)
    narrow, wide = first.dtype, WIDER[first.dtype]

    def widen(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(wide) if value.dtype is narrow else value
        if isinstance(value, (list, tuple)):
            return type(value)(widen(item) for item in value)
        return value

    def back(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(narrow) if value.dtype is wide else value
        if isinstance(value, (list, tuple)):
            return type(value)(back(item) for item in value)
        return value

    wider = [widen(value) for value in args]
    wider_kwargs = {name: widen(value) for name, value in kwargs.items()}
    result = compute(*wider, **wider_kwargs)
    for place in operator.writes:
        by_name = isinstance(place, str)
        ours = kwargs.get(place) if by_name else args[place]
        theirs = wider_kwargs.get(place) if by_name else wider[place]
        if isinstance(ours, Tensor) and isinstance(theirs, Tensor) and ours is not theirs:
            ours.resize_(theirs.size()).copy_(theirs) if operator.out else ours.copy_(theirs)
    return back(result)


def tensors(values: list[Any]) -> list[Tensor]:
    """The tensors among values, and in the sequences among them."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors(list(value))
    return found
