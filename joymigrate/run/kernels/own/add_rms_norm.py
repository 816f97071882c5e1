"""Residual sum and RMS norm in Triton: x and the residual are read once, sum and norm written once.

total = x + residual;  y = total · r · w,  r = 1 / sqrt(mean(total²) + eps)
dtotal = r · (w · dy - n · mean(w · dy · n)) + dtotal_out,  n = total · r
dw = Σ over rows of dy · n,  summed per program first, then over programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from joymigrate.run.kernels.own import launch

PROGRAMS = 128  # of the backward: each sums the weight's gradient over its share of the rows


@triton.jit
def forward(x, residual, weight, y, total, inverse, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    here = row * size + at
    left = tl.load(x + here, mask=inside, other=0.0)
    right = tl.load(residual + here, mask=inside, other=0.0)
    # Rounded like the sum that the next layer reads, so that both see the same numbers.
    rounded = (left.to(tl.float32) + right.to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + here, rounded, mask=inside)
    wide = rounded.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / size + eps)
    tl.store(inverse + row, factor)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + here, (wide * factor * scale).to(y.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    dy, dtotal, total, weight, inverse, dx, dweight, count, size, share,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros((BLOCK,), dtype=tl.float32)
    first = program * share
    last = tl.minimum(first + share, count)
    for row in range(first, last):
        here = row * size + at
        factor = tl.load(inverse + row)
        normal = tl.load(total + here, mask=inside, other=0.0).to(tl.float32) * factor
        grad = tl.load(dy + here, mask=inside, other=0.0).to(tl.float32)
        summed += grad * normal
        grad = grad * scale
        back = factor * (grad - normal * (tl.sum(grad * normal, 0) / size))
        back += tl.load(dtotal + here, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + here, back.to(dx.dtype.element_ty), mask=inside)
    tl.store(dweight + program * size + at, summed, mask=inside)


class TritonAddRmsNorm(torch.autograd.Function):
    """Keeps the sum and one number a row."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        flat, count, size = launch.rows(x), launch.rows(x).shape[0], x.shape[-1]
        y, total = torch.empty_like(flat), torch.empty_like(flat)
        inverse = torch.empty(count, dtype=torch.float32, device=x.device)
        if count:
            forward[(count,)](
                flat, launch.rows(residual), weight.contiguous(), y, total, inverse, size, eps,
                BLOCK=launch.block(size), num_warps=launch.warps(size),
            )  # fmt: skip
        ctx.save_for_backward(total, weight, inverse)
        return y.view(x.shape), total.view(x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        total, weight, inverse = ctx.saved_tensors
        count, size = total.shape
        programs = max(1, min(PROGRAMS, count))
        dx = torch.empty_like(total)
        dweight = torch.zeros(programs, size, dtype=torch.float32, device=dy.device)
        if count:
            backward[(programs,)](
                launch.rows(dy), launch.rows(dtotal), total, weight.contiguous(), inverse, dx,
                dweight, count, size, -(-count // programs),
                BLOCK=launch.block(size), num_warps=launch.warps(size),
            )  # fmt: skip
        dx = dx.view(dy.shape)
        return dx, dx, dweight.sum(0).to(weight.dtype), None


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """See `ops/add_rms_norm.py`."""
    found: tuple[Tensor, Tensor] = launch.apply(TritonAddRmsNorm, x, residual, weight, eps)
    return found
