"""concat(q, k, q - k, q · k) in Triton: q and k are read once, all four parts written at once.

One program writes one row of 4·D. dq = dy₀ + dy₂ + dy₃ · k and dk = dy₁ - dy₂ + dy₃ · q; where one
target stands for L rows of history, a program sums dq over its rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from joymigrate.run.kernels.own import launch


@triton.jit
def forward(q, k, y, size, repeat, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    target = tl.load(q + (row // repeat) * size + at, mask=inside, other=0.0)
    key = tl.load(k + row * size + at, mask=inside, other=0.0)
    wide, other = target.to(tl.float32), key.to(tl.float32)
    out = y + row * 4 * size + at
    tl.store(out, target, mask=inside)
    tl.store(out + size, key, mask=inside)
    tl.store(out + 2 * size, (wide - other).to(y.dtype.element_ty), mask=inside)
    tl.store(out + 3 * size, (wide * other).to(y.dtype.element_ty), mask=inside)


@triton.jit
def backward(q, k, dy, dq, dk, size, repeat, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    target = tl.load(q + program * size + at, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(0, repeat):
        row = program * repeat + step
        grad = dy + row * 4 * size + at
        key = tl.load(k + row * size + at, mask=inside, other=0.0).to(tl.float32)
        less = tl.load(grad + 2 * size, mask=inside, other=0.0).to(tl.float32)
        times = tl.load(grad + 3 * size, mask=inside, other=0.0).to(tl.float32)
        summed += tl.load(grad, mask=inside, other=0.0).to(tl.float32) + less + times * key
        back = tl.load(grad + size, mask=inside, other=0.0).to(tl.float32) - less + times * target
        tl.store(dk + row * size + at, back.to(dk.dtype.element_ty), mask=inside)
    tl.store(dq + program * size + at, summed.to(dq.dtype.element_ty), mask=inside)


class SubMulConcat(torch.autograd.Function):
    """q and k as matrices; each row of q stands for `repeat` rows of k."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, repeat: int) -> Tensor:
        ctx.save_for_backward(q, k)
        ctx.repeat = repeat
        count, size = k.shape
        y = torch.empty((count, 4 * size), dtype=k.dtype, device=k.device)
        if count:
            forward[(count,)](q, k, y, size, repeat, BLOCK=launch.block(size))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        q, k = ctx.saved_tensors
        dq, dk = torch.zeros_like(q), torch.empty_like(k)
        if k.numel():
            sizes = (q.shape[1], ctx.repeat)
            backward[(q.shape[0],)](
                q, k, dy.contiguous(), dq, dk, *sizes, BLOCK=launch.block(q.shape[1])
            )
        return dq, dk, None


def sub_mul_concat(q: Tensor, k: Tensor) -> Tensor:
    """See `ops/sub_mul_concat.py`. Other broadcasts than one target a row are expanded first."""
    one = q.dim() == k.dim() > 1 and q.shape[-2] == 1 and q.shape[:-2] == k.shape[:-2]
    if q.shape != k.shape and not one:
        q, k = (t.contiguous() for t in torch.broadcast_tensors(q, k))
    repeat = 1 if q.shape == k.shape else k.shape[-2]
    y: Tensor = launch.apply(SubMulConcat, launch.rows(q), launch.rows(k), repeat)
    return y.view(*k.shape[:-1], 4 * k.shape[-1])
