"""One filled operator: its overloads, the function that computes it, the error it is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Fill:
    """`function` computes every overload in `overloads` (full names: `aten::lgamma.out`).

    It takes the arguments of the overload that makes a new result; in-place and `out` overloads
    are made of it. `rtol` and `atol` bound its error in float32 against float64; `note` says
    what it does not do.
    """

    name: str
    overloads: tuple[str, ...]
    function: Callable[..., Any]
    rtol: float
    atol: float
    note: str = ""


FILLS: dict[str, Fill] = {}


def fill(
    overloads: str, *, rtol: float = 2e-6, atol: float = 1e-6, note: str = ""
) -> Callable[[Function], Function]:
    """Declare a function for torch's `overloads`, written as words: `lgamma lgamma_ lgamma.out`."""
    names = tuple(f"aten::{name}" for name in overloads.split())

    def declare(function: Function) -> Function:
        name = names[0].removeprefix("aten::")
        FILLS[name] = Fill(name, names, function, rtol, atol, note)
        return function

    return declare


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for halves, torch's default for whole numbers."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """The floating dtype of a result: that of floating inputs, torch's default for the others."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def floats(*values: Tensor) -> tuple[list[Tensor], torch.dtype]:
    """Operands in the dtype to compute in, on one device, and the dtype of the result.

    A tensor without dimensions may lie on the host, next to tensors of the device.
    """
    shared = common(*values)
    dtype = result_dtype(shared[0].dtype)
    return [value.to(wide(dtype)) for value in shared], dtype


def common(*values: Tensor) -> list[Tensor]:
    """Operands in their common dtype and on one device."""
    dtype = values[0].dtype
    for value in values[1:]:
        dtype = torch.result_type(value, values[0]) if len(values) == 2 else dtype
    device = next((v.device for v in values if v.device.type != "cpu"), values[0].device)
    return [value.to(device=device, dtype=dtype) for value in values]


def elementwise(function: Function) -> Function:
    """Let `function` compute on wide floats; the result gets the dtype that torch gives it."""

    def widened(*values: Tensor) -> Tensor:
        operands, dtype = floats(*values)
        found: Tensor = function(*operands)
        return found.to(dtype)

    return widened  # type: ignore[return-value]
