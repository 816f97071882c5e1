"""What our Triton kernels share: block sizes and one place for autograd's calling convention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def block(size: int, *, most: int = 1 << 16, least: int = 16) -> int:
    """The smallest power of two that holds `size`."""
    return max(least, min(most, 1 << max(0, size - 1).bit_length()))


def warps(size: int) -> int:
    """Warps for a row of `size` elements held at once."""
    return 4 if size <= 2048 else 8 if size <= 8192 else 16


def rows(x: Tensor) -> Tensor:
    """x as a contiguous matrix of its last axis."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """`function.apply`, which torch leaves untyped."""
    return function.apply(*args)
