"""Operators that torch declares but has no CPU kernel for, written for speed.

`matmul_backward` is in every training step: torch_npu gives matmul an autograd formula of its own.
The references in `refs/` stay the readable definitions; what is here must agree with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


def matmul_backward(
    grad: Tensor | None, self: Tensor, other: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of `self @ other` for what `mask` asks for (aten::matmul_backward); none where
    none comes in."""
    if grad is None:
        return None, None
    if self.dim() == 1 and other.dim() == 1:
        return (grad * other if mask[0] else None, grad * self if mask[1] else None)
    left = self.unsqueeze(0) if self.dim() == 1 else self
    right = other.unsqueeze(1) if other.dim() == 1 else other
    if self.dim() == 1:
        grad = grad.unsqueeze(-2)
    if other.dim() == 1:
        grad = grad.unsqueeze(-1)
    to_left = to_right = None
    if mask[0]:
        to_left = (grad @ right.mT).sum_to_size(left.shape).reshape(self.shape)
    if mask[1]:
        if right.dim() == 2 and left.dim() > 2:  # a weight under a batch: one product
            flat = left.reshape(-1, left.shape[-1]).mT @ grad.reshape(-1, grad.shape[-1])
        else:
            flat = (left.mT @ grad).sum_to_size(right.shape)
        to_right = flat.reshape(other.shape)
    return to_left, to_right


BUILT_IN: dict[str, Callable[..., Any]] = {"aten::matmul_backward": matmul_backward}
