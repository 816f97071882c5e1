"""Calls that torch's CPU build has no kernel for and the chip has: computed in another way.

bfloat16 and float16 go by float32; integers by float64 (exact up to 2**53); uint64 by int64, which
has the same bits for sums and products; positions in int32, as the chip's pooling gives, by int64.
A gap that nothing helps raises an error that is plainly ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.vendor import with_tensors

WIDER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.uint64: torch.int64,
    torch.uint32: torch.int64,
    torch.uint16: torch.int64,
    **dict.fromkeys((torch.int8, torch.uint8, torch.int16, torch.int32), torch.float64),
    torch.int64: torch.float64,
}
NO_KERNEL = "not implemented for '"
NOT_CONTIGUOUS = "to be contiguous"
MIXED_TYPES = "expected scalar type"
NUMBER_GIVEN = "instead found type"  # a number where only some operators take one for a tensor
POSITIONS = re.compile(
    r"scalar type Long but found Int|should be type int64|[Ee]xpected dtype int64 for index"
    r"|must have scalar type Long|to have scalar type Long|indices must be .*(?:long|int64)"
)
MOST_WAYS = 3  # gaps of one call that are gone round


def is_gap(error: RuntimeError) -> bool:
    """Whether torch's CPU kernel raises this where the chip's need not."""
    text = str(error)
    if any(one in text for one in (NO_KERNEL, NOT_CONTIGUOUS, MIXED_TYPES, NUMBER_GIVEN)):
        return True
    return POSITIONS.search(text) is not None


def compute_otherwise(
    operator: Any,
    compute: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    error: RuntimeError,
) -> Any:
    """The result of a call that met the gap `error`.

    Raises an error of our own where torch's CPU build has no kernel and nothing wider helps, else
    torch's.
    """
    first = error
    for _ in range(MOST_WAYS):
        text = str(error)
        try:
            if POSITIONS.search(text):  # what is written has to stay the caller's
                kept = operator.writes
                args = [one if n in kept else as_positions(one) for n, one in enumerate(args)]
                kwargs = {n: one if n in kept else as_positions(one) for n, one in kwargs.items()}
                return compute(*args, **kwargs)
            if NUMBER_GIVEN in text:
                args, kwargs = with_tensors(operator, args, kwargs)
                return compute(*args, **kwargs)
            if NO_KERNEL in text:
                return compute_wider(operator, compute, [*args], kwargs)
            if operator.writes:
                raise error
            if NOT_CONTIGUOUS in text:
                # torch's CPU formula makes it contiguous; the vendor's kernel takes any strides.
                args = [one.contiguous() if isinstance(one, Tensor) else one for one in args]
            elif MIXED_TYPES in text:
                # The vendor keeps statistics in float32 next to half inputs.
                args = [in_float32(one) for one in args]
            else:
                raise error
            return compute(*args, **kwargs)
        except RuntimeError as another:
            if not is_gap(another) or str(another) == text:
                error = another
                break
            error = another
    if NO_KERNEL not in str(error):
        raise error
    raise NotImplementedError(
        f"rehearsal device: {operator.name} is computed by torch's CPU kernel here, which lacks "
        f"this type ({first}); this says nothing about the chip ({call_site()})"
    ) from None


def as_positions(value: Any) -> Any:
    """An int32 tensor in int64, and such tensors in a list; anything else as it is."""
    if isinstance(value, Tensor) and value.dtype is torch.int32:
        return value.long()
    if isinstance(value, (list, tuple)):
        return type(value)(as_positions(item) for item in value)
    return value


def in_float32(value: Any) -> Any:
    """A half-precision tensor in float32; anything else as it is."""
    short = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if short else value


def compute_wider(
    operator: Any, compute: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The result of `compute` on wider arguments, narrowed; what it writes is written back.

    Raises torch's own error where nothing wider helps.
    """
    first = next((t for t in tensors([*args, *kwargs.values()]) if t.dtype in WIDER), None)
    if first is None:
        return compute(*args, **kwargs)  # raises once more
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
