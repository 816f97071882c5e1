"""Between arrays and tensors: what goes into a program, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-5  # of the largest score; sums of another order differ by a few units of rounding


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


def close(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Equal but for rounding; minus infinity is a score."""
    if left.shape != right.shape:
        return False
    low = np.isneginf(left) if left.dtype.kind == "f" else np.zeros(left.shape, bool)
    if left.dtype.kind == "f" and not np.array_equal(low, np.isneginf(right)):
        return False
    scale = max(1.0, float(np.abs(left[~low]).max(initial=0.0)))
    return bool(np.allclose(left[~low], right[~low], rtol=0, atol=TOLERANCE * scale))


def are_scores(array: np.ndarray[Any, Any]) -> bool:
    """Whether these are numbers to rank by: minus infinity is one (out of stock)."""
    return array.dtype.kind != "f" or not bool((np.isnan(array) | np.isposinf(array)).any())
