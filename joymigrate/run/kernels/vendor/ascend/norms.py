"""npu_rms_norm and npu_add_rms_norm."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from torch import Tensor

from joymigrate.run.kernels.operator import Call


def when(call: Call) -> str | None:
    """The chip's kernels are not called for nothing."""
    return "for at least one element" if 0 in call.shape else None


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0) -> Tensor:
    """The weight goes in x's dtype, as the documents ask; torch_npu knows the derivative."""
    gamma = (weight + offset if offset else weight).to(x.dtype)
    found: Tensor = torch_npu.npu_rms_norm(x, gamma, epsilon=eps)[0]
    return found


class NpuAddRmsNorm(torch.autograd.Function):
    """torch_npu has no derivative for the fused sum: the norm's own, plus the sum's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        y, inverse, total = torch_npu.npu_add_rms_norm(x, residual, weight, eps)
        ctx.save_for_backward(total, weight, inverse)
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        total, weight, inverse = ctx.saved_tensors
        dx, dweight = torch_npu.npu_rms_norm_backward(dy.contiguous(), total, weight, inverse)
        dx = dx + dtotal
        return dx, dx, dweight.to(weight.dtype), None


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """npu_add_rms_norm gives (y, reciprocal rms, sum)."""
    found: tuple[Tensor, Tensor] = NpuAddRmsNorm.apply(x, residual, weight.to(x.dtype), eps)  # type: ignore[no-untyped-call]
    return found
