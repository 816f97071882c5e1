"""Turns a case's float64 arguments into those of one dtype, device and memory layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import Float32, OperatorCase

Place = Callable[[Tensor, bool], Tensor]  # (tensor, keeps float32) → tensor


@dataclass(frozen=True, slots=True)
class ReadyArguments:
    """Ready arguments; `leaves` are the tensors that gradients are asked for, in order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: tuple[Tensor, ...]


def prepare(
    case: OperatorCase,
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    grad: bool = False,
    strided: bool = False,
    exact: bool = False,
) -> ReadyArguments:
    """Arguments of a case, fresh copies. `strided`: floating tensors are views with gaps.

    `exact`: rounded to `dtype` and then held in float64 on the CPU, for the true result of the
    very inputs that the implementations get.
    """

    def place(tensor: Tensor, wide: bool) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.to("cpu" if exact else device).clone()
        rounded = tensor.to(torch.float32 if wide else dtype)
        return rounded.double() if exact else rounded.to(device).clone()

    leaves = []
    args: list[Any] = []
    for position, value in enumerate(case.args):
        made = map_tensors(value, place)
        if grad and position in case.grad:
            leaves.append(made.requires_grad_())
        args.append(with_gaps(made) if strided and gap_worthy(made) else made)
    kwargs = {name: map_tensors(value, place) for name, value in case.kwargs.items()}
    return ReadyArguments(tuple(args), kwargs, tuple(leaves))


def map_tensors(value: Any, place: Place) -> Any:
    """`value` with every tensor in it placed."""
    if isinstance(value, Float32):
        return place(value.tensor, True)
    if isinstance(value, Tensor):
        return place(value, False)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, place) for item in value)
    if hasattr(value, "placed"):  # a description that holds tensors, such as a mask
        return value.placed(lambda tensor: place(tensor, False))
    return value


def gap_worthy(value: Any) -> bool:
    """Whether a view with gaps makes sense for this argument."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0


def with_gaps(tensor: Tensor) -> Tensor:
    """The same values as a view of every second element; gradients reach `tensor`."""
    return torch.stack((tensor, torch.zeros_like(tensor)), -1).flatten(-2)[..., ::2]
