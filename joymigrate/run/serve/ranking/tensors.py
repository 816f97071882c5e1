"""Between arrays and tensors: what goes into a program, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


def outputs_of(found: Any) -> list[torch.Tensor]:
    """What a program returned as tensors on the CPU, numbers in float32."""
    import torch

    tensors = [found] if isinstance(found, torch.Tensor) else list(found)
    return [one.float().cpu() if one.is_floating_point() else one.cpu() for one in tensors]


def as_arrays(tensors: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Tensors on the CPU as arrays, without a copy."""
    return tuple(tensor.numpy() for tensor in tensors)


def writable(array: Any) -> Any:
    """The array, copied where it is a view of a request's body: torch takes no read-only ones.

    A merged batch is a copy already.
    """
    return array if array.flags.writeable else array.copy()


def as_typed(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The tensor as the program takes it: bfloat16 came as float32."""
    import torch

    return tensor.to(torch.bfloat16) if dtype == "bfloat16" else tensor
