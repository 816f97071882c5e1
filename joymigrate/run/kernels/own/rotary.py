"""Rotary embedding in Triton.

(a, b) → (a · cos_a - b · sin_a, b · cos_b + a · sin_b) for each pair; one program rotates one
head at one position. The backward is the same kernel: dx = dy rotated with the sines swapped
between the two of a pair and negated.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from joymigrate.run.kernels.own import launch


@triton.jit
def kernel(
    x, y, cos, sin,
    x_row, angle_batch, angle_position, heads, positions,
    SIZE: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
    BACKWARD: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = row % positions
    batch = row // (positions * heads)
    pair = tl.arange(0, PAIRS)
    valid = pair < ROTATED // 2
    if INTERLEAVED:
        first = 2 * pair
        second = 2 * pair + 1
    else:
        first = pair
        second = pair + ROTATED // 2
    angles = batch * angle_batch + position * angle_position
    cos_a = tl.load(cos + angles + first, mask=valid, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + angles + second, mask=valid, other=0.0).to(tl.float32)
    sin_a = tl.load(sin + angles + first, mask=valid, other=0.0).to(tl.float32)
    sin_b = tl.load(sin + angles + second, mask=valid, other=0.0).to(tl.float32)
    a = tl.load(x + row * x_row + first, mask=valid, other=0.0).to(tl.float32)
    b = tl.load(x + row * x_row + second, mask=valid, other=0.0).to(tl.float32)
    if BACKWARD:
        new_a = a * cos_a + b * sin_b
        new_b = b * cos_b - a * sin_a
    else:
        new_a = a * cos_a - b * sin_a
        new_b = b * cos_b + a * sin_b
    tl.store(y + row * SIZE + first, new_a.to(y.dtype.element_ty), mask=valid)
    tl.store(y + row * SIZE + second, new_b.to(y.dtype.element_ty), mask=valid)
    if SIZE > ROTATED:
        rest = ROTATED + tl.arange(0, REST)
        kept = tl.load(x + row * x_row + rest, mask=rest < SIZE, other=0.0)
        tl.store(y + row * SIZE + rest, kept, mask=rest < SIZE)


def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, backward: bool) -> Tensor:
    """x [B, N, S, D] rotated by cos, sin [B or 1, S, R]."""
    batch, heads, positions, size = x.shape
    y = torch.empty((batch, heads, positions, size), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, rotated = x.contiguous(), cos.shape[-1]
    kernel[(batch * heads * positions,)](
        x, y, cos, sin,
        size, 0 if cos.shape[0] == 1 else cos.stride(0), cos.stride(1), heads, positions,
        SIZE=size, ROTATED=rotated, INTERLEAVED=interleaved, BACKWARD=backward,
        PAIRS=launch.block(rotated // 2), REST=launch.block(max(1, size - rotated)),
    )  # fmt: skip
    return y


class RotaryFunction(torch.autograd.Function):
    """Keeps cos and sin only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return turn(x, cos, sin, interleaved, False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return turn(dy, cos, sin, ctx.interleaved, True), None, None, None


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """See `ops/rotary.py`. x of other than four axes, or angles by head, are expanded first."""
    shape = x.shape
    angles: tuple[Tensor, ...]
    positions, size = shape[-2], shape[-1]
    if x.dim() == 4 and cos.dim() == 4 and cos.shape[1] == 1:
        angles = (cos[:, 0], sin[:, 0])
    elif all(extent == 1 for extent in cos.shape[:-2]):
        angles = (cos.reshape(1, *cos.shape[-2:]), sin.reshape(1, *sin.shape[-2:]))
        x = x.reshape(-1, 1, positions, size)
    else:
        full = (*shape[:-1], cos.shape[-1])
        angles = tuple(t.expand(full).reshape(-1, positions, full[-1]) for t in (cos, sin))
        x = x.reshape(-1, 1, positions, size)
    if angles[0].shape[1] != positions:  # one position for all
        angles = tuple(t.expand(t.shape[0], positions, t.shape[2]) for t in angles)
    angles = tuple(t.contiguous() for t in angles)
    y: Tensor = launch.apply(RotaryFunction, x, *angles, interleaved)
    return y.reshape(shape)
