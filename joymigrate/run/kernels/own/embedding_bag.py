"""Pooled rows in Triton, for sums and means: a program reads the rows of one bag.

The backward sums by row without atomics: places are sorted by row, and a program adds up the
gradients of one row, so that two runs give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from joymigrate.run.kernels.operator import Call
from joymigrate.run.kernels.ops.embedding_bag import close_offsets
from joymigrate.run.kernels.own import launch


def when(call: Call) -> str | None:
    """Weighted bags and maxima are torch's."""
    return None if call.variant in ("sum", "mean") else "for unweighted sums and means"


@triton.jit
def pool(weight, indices, offsets, pooled, size, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    bag = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    start, stop = tl.load(offsets + bag), tl.load(offsets + bag + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for place in range(start, stop):
        row = tl.load(indices + place).to(tl.int64)
        total += tl.load(weight + row * size + at, mask=inside, other=0.0).to(tl.float32)
    if MEAN:
        total = total / tl.maximum(stop - start, 1)
    tl.store(pooled + bag * size + at, total.to(pooled.dtype.element_ty), mask=inside)


class PooledRows(torch.autograd.Function):
    """Forward: rows by bag. Backward: bags by row, over indices sorted by row."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, offsets: Tensor, mean: bool) -> Tensor:
        ctx.save_for_backward(indices, offsets)
        ctx.mean, ctx.shape = mean, weight.shape
        return gather(weight.contiguous(), indices, offsets, mean)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        indices, offsets = ctx.saved_tensors
        count = offsets.numel() - 1
        if ctx.mean and count:
            dy = dy / offsets.diff().clamp(min=1).to(dy.dtype)[:, None]
        token = torch.arange(indices.numel(), device=dy.device)
        bags = torch.bucketize(token, offsets[1:], right=True)
        order = indices.argsort(stable=True)
        rows = torch.arange(ctx.shape[0] + 1, device=dy.device)
        edges = torch.searchsorted(indices[order], rows.to(indices.dtype))
        return gather(dy.contiguous(), bags[order], edges, False), None, None, None


def gather(values: Tensor, indices: Tensor, offsets: Tensor, mean: bool) -> Tensor:
    """One program for each bag."""
    count, size = offsets.numel() - 1, values.shape[1]
    pooled = torch.empty((count, size), dtype=values.dtype, device=values.device)
    if count:
        pool[(count,)](
            values, indices, offsets.contiguous(), pooled, size, MEAN=mean, BLOCK=launch.block(size)
        )
    return pooled


def embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, mode: str) -> Tensor:
    """See `ops/embedding_bag.py`."""
    closed = close_offsets(offsets, indices)
    pooled: Tensor = launch.apply(PooledRows, weight, indices, closed, mode == "mean")
    return pooled[:-1]
