"""Attention of sequences of different lengths, packed back to back, in Triton.

Layout [T, N, D] with offsets [B + 1]; grouped key heads. One program computes a block of queries
of one head of one sequence, over the key blocks that its mask can show: blocks past the causal
edge, before the window, or between context and own candidate are never loaded.

Softmax runs online: m and l are the maximum and the sum so far, acc the weighted values. The
backward recomputes the weights from L = m + log l:
    P = exp(scale·QKᵀ - L);  dV = Pᵀ dO;  dP = dO Vᵀ;  dS = P (dP - rowsum(dO · O))
    dQ = scale · dS K;  dK = scale · dSᵀ Q

Modes: 0 full, 1 causal, 2 window, 3 candidates with a causal context, 4 candidates with an open
context. In modes 3 and 4 `limits` [B] holds each sequence's context length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from joymigrate.run.kernels.mask import CandidateMask, JaggedMask, Mask, WindowMask
from joymigrate.run.kernels.own import launch


@triton.jit
def is_visible(i, j, length, limit, MODE: tl.constexpr):
    """Whether query i sees key j inside one sequence."""
    seen = (i < length) & (j < length)
    if MODE == 1:
        seen = seen & (j <= i)
    if MODE == 2:
        seen = seen & (j <= i) & (j > i - limit)
    if MODE == 3:
        seen = seen & ((j == i) | ((j < limit) & (j <= i)))
    if MODE == 4:
        seen = seen & ((j == i) | (j < limit))
    return seen


@triton.jit
def sees_nothing(
    first_i, first_j, limit, MODE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """Whether no query of this block sees any key of that one."""
    last_i = first_i + ROWS - 1
    last_j = first_j + COLS - 1
    nothing = first_j < 0
    if MODE == 1:
        nothing = first_j > last_i
    if MODE == 2:
        nothing = (first_j > last_i) | (last_j <= first_i - limit)
    if MODE == 3:
        nothing = (first_j > last_i) | ((first_j >= limit) & (last_j < first_i))
    if MODE == 4:
        nothing = (first_j >= limit) & ((first_j > last_i) | (last_j < first_i))
    return nothing


@triton.jit
def forward(
    q, k, v, out, logs, offsets, limits, scale, heads, groups, q_row, k_row, v_row, window,
    MODE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(2)
    head = tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1).to(tl.int64) - start).to(tl.int32)
    first_i = tl.program_id(0) * ROWS
    if first_i < length:
        limit = window
        if MODE >= 3:
            limit = tl.load(limits + sequence).to(tl.int32)
        i = first_i + tl.arange(0, ROWS)
        d = tl.arange(0, D)
        e = tl.arange(0, E)
        rows = (start + i).to(tl.int64)
        kv = head // groups
        query = tl.load(
            q + rows[:, None] * q_row + head * SIZE + d[None, :],
            mask=(i[:, None] < length) & (d[None, :] < SIZE), other=0.0,
        )  # fmt: skip
        most = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((ROWS,), dtype=tl.float32)
        acc = tl.zeros((ROWS, E), dtype=tl.float32)
        for first_j in range(0, length, COLS):
            if not sees_nothing(first_i, first_j, limit, MODE, ROWS, COLS):
                j = first_j + tl.arange(0, COLS)
                columns = (start + j).to(tl.int64)
                key = tl.load(
                    k + columns[None, :] * k_row + kv * SIZE + d[:, None],
                    mask=(j[None, :] < length) & (d[:, None] < SIZE), other=0.0,
                )  # fmt: skip
                scores = tl.dot(query, key, input_precision="ieee") * scale
                seen = is_visible(i[:, None], j[None, :], length, limit, MODE)
                scores = tl.where(seen, scores, float("-inf"))
                new = tl.maximum(most, tl.max(scores, 1))
                safe = tl.where(new == float("-inf"), 0.0, new)
                weights = tl.exp(scores - safe[:, None])
                shrink = tl.exp(most - safe)
                total = total * shrink + tl.sum(weights, 1)
                value = tl.load(
                    v + columns[:, None] * v_row + kv * WIDTH + e[None, :],
                    mask=(j[:, None] < length) & (e[None, :] < WIDTH), other=0.0,
                )  # fmt: skip
                product = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
                acc = acc * shrink[:, None] + product
                most = new
        empty = total == 0.0
        safe_total = tl.where(empty, 1.0, total)
        result = acc / safe_total[:, None]
        place = out + rows[:, None] * heads * WIDTH + head * WIDTH + e[None, :]
        kept = (i[:, None] < length) & (e[None, :] < WIDTH)
        tl.store(place, result.to(out.dtype.element_ty), mask=kept)
        log = tl.where(empty, float("inf"), most + tl.log(safe_total))
        tl.store(logs + rows * heads + head, log, mask=i < length)


@triton.jit
def backward_q(
    q, k, v, dout, logs, delta, dq, offsets, limits, scale, heads, groups,
    q_row, k_row, v_row, window,
    MODE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(2)
    head = tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1).to(tl.int64) - start).to(tl.int32)
    first_i = tl.program_id(0) * ROWS
    if first_i < length:
        limit = window
        if MODE >= 3:
            limit = tl.load(limits + sequence).to(tl.int32)
        i = first_i + tl.arange(0, ROWS)
        d = tl.arange(0, D)
        e = tl.arange(0, E)
        rows = (start + i).to(tl.int64)
        kv = head // groups
        inside = i < length
        query = tl.load(
            q + rows[:, None] * q_row + head * SIZE + d[None, :],
            mask=inside[:, None] & (d[None, :] < SIZE), other=0.0,
        )  # fmt: skip
        grad = tl.load(
            dout + rows[:, None] * heads * WIDTH + head * WIDTH + e[None, :],
            mask=inside[:, None] & (e[None, :] < WIDTH), other=0.0,
        )  # fmt: skip
        log = tl.load(logs + rows * heads + head, mask=inside, other=float("inf"))
        less = tl.load(delta + rows * heads + head, mask=inside, other=0.0)
        acc = tl.zeros((ROWS, D), dtype=tl.float32)
        for first_j in range(0, length, COLS):
            if not sees_nothing(first_i, first_j, limit, MODE, ROWS, COLS):
                j = first_j + tl.arange(0, COLS)
                columns = (start + j).to(tl.int64)
                key = tl.load(
                    k + columns[:, None] * k_row + kv * SIZE + d[None, :],
                    mask=(j[:, None] < length) & (d[None, :] < SIZE), other=0.0,
                )  # fmt: skip
                value = tl.load(
                    v + columns[:, None] * v_row + kv * WIDTH + e[None, :],
                    mask=(j[:, None] < length) & (e[None, :] < WIDTH), other=0.0,
                )  # fmt: skip
                scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
                seen = is_visible(i[:, None], j[None, :], length, limit, MODE)
                weights = tl.where(seen, tl.exp(scores - log[:, None]), 0.0)
                dweights = tl.dot(grad, tl.trans(value), input_precision="ieee")
                dscores = weights * (dweights - less[:, None])
                acc += tl.dot(dscores.to(key.dtype), key, input_precision="ieee")
        place = dq + rows[:, None] * heads * SIZE + head * SIZE + d[None, :]
        kept = inside[:, None] & (d[None, :] < SIZE)
        tl.store(place, (acc * scale).to(dq.dtype.element_ty), mask=kept)


@triton.jit
def backward_kv(
    q, k, v, dout, logs, delta, dk, dv, offsets, limits, scale, heads, groups,
    q_row, k_row, v_row, window,
    MODE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(2)
    kv = tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1).to(tl.int64) - start).to(tl.int32)
    first_j = tl.program_id(0) * COLS
    if first_j < length:
        limit = window
        if MODE >= 3:
            limit = tl.load(limits + sequence).to(tl.int32)
        j = first_j + tl.arange(0, COLS)
        d = tl.arange(0, D)
        e = tl.arange(0, E)
        columns = (start + j).to(tl.int64)
        there = j < length
        key = tl.load(
            k + columns[:, None] * k_row + kv * SIZE + d[None, :],
            mask=there[:, None] & (d[None, :] < SIZE), other=0.0,
        )  # fmt: skip
        value = tl.load(
            v + columns[:, None] * v_row + kv * WIDTH + e[None, :],
            mask=there[:, None] & (e[None, :] < WIDTH), other=0.0,
        )  # fmt: skip
        acc_k = tl.zeros((COLS, D), dtype=tl.float32)
        acc_v = tl.zeros((COLS, E), dtype=tl.float32)
        for group in range(0, groups):
            head = kv * groups + group
            for first_i in range(0, length, ROWS):
                if not sees_nothing(first_i, first_j, limit, MODE, ROWS, COLS):
                    i = first_i + tl.arange(0, ROWS)
                    rows = (start + i).to(tl.int64)
                    inside = i < length
                    query = tl.load(
                        q + rows[:, None] * q_row + head * SIZE + d[None, :],
                        mask=inside[:, None] & (d[None, :] < SIZE), other=0.0,
                    )  # fmt: skip
                    grad = tl.load(
                        dout + rows[:, None] * heads * WIDTH + head * WIDTH + e[None, :],
                        mask=inside[:, None] & (e[None, :] < WIDTH), other=0.0,
                    )  # fmt: skip
                    log = tl.load(logs + rows * heads + head, mask=inside, other=float("inf"))
                    less = tl.load(delta + rows * heads + head, mask=inside, other=0.0)
                    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
                    seen = is_visible(i[:, None], j[None, :], length, limit, MODE)
                    weights = tl.where(seen, tl.exp(scores - log[:, None]), 0.0)
                    acc_v += tl.dot(tl.trans(weights.to(grad.dtype)), grad, input_precision="ieee")
                    dweights = tl.dot(grad, tl.trans(value), input_precision="ieee")
                    dscores = weights * (dweights - less[:, None])
                    acc_k += tl.dot(
                        tl.trans(dscores.to(query.dtype)), query, input_precision="ieee"
                    )
        kv_heads = heads // groups
        place_k = dk + columns[:, None] * kv_heads * SIZE + kv * SIZE + d[None, :]
        kept_k = there[:, None] & (d[None, :] < SIZE)
        tl.store(place_k, (acc_k * scale).to(dk.dtype.element_ty), mask=kept_k)
        place_v = dv + columns[:, None] * kv_heads * WIDTH + kv * WIDTH + e[None, :]
        kept_v = there[:, None] & (e[None, :] < WIDTH)
        tl.store(place_v, acc_v.to(dv.dtype.element_ty), mask=kept_v)


def settings(q: Tensor, v: Tensor, mask: JaggedMask) -> tuple[int, int, Tensor, dict[str, int]]:
    """(longest sequence, window, context lengths, compile-time constants) of a call."""
    inner = mask.inner
    mode = {"full": 0, "causal": 1, "window": 2}.get(inner.name, 3)
    window, limits = 0, mask.offsets
    if isinstance(inner, WindowMask):
        window = inner.size
    if isinstance(inner, CandidateMask):
        mode = 3 if inner.causal else 4
        given = mask.contexts
        count = mask.offsets.numel() - 1
        limits = mask.offsets.new_full((count,), inner.context) if given is None else given
    size, width = q.shape[-1], v.shape[-1]
    blocks = {"D": launch.block(size), "E": launch.block(width)}
    # Two key blocks, two query blocks and the sums have to fit on chip.
    tile = 64 if max(blocks.values()) <= 128 else 32
    longest = mask.length()
    tile = min(tile, launch.block(longest))
    constants = {"MODE": mode, "SIZE": size, "WIDTH": width, "ROWS": tile, "COLS": tile, **blocks}
    return longest, window, limits, constants


class JaggedAttention(torch.autograd.Function):
    """Keeps q, k, v, the result and one number a row and head."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: JaggedMask, scale: float
    ) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        tokens, heads, _ = q.shape
        groups = heads // k.shape[1]
        out = torch.zeros((tokens, heads, v.shape[-1]), dtype=q.dtype, device=q.device)
        logs = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
        longest, window, limits, constants = settings(q, v, mask)
        sequences = mask.offsets.numel() - 1
        if tokens and longest:
            grid = (triton.cdiv(longest, constants["ROWS"]), heads, sequences)
            forward[grid](
                q, k, v, out, logs, mask.offsets, limits, scale, heads, groups,
                q.stride(0), k.stride(0), v.stride(0), window, **constants,
            )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, logs)
        ctx.mask, ctx.scale = mask, scale
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logs = ctx.saved_tensors
        tokens, heads, _ = q.shape
        groups = heads // k.shape[1]
        dout = dout.contiguous()
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        longest, window, limits, constants = settings(q, v, ctx.mask)
        sequences = ctx.mask.offsets.numel() - 1
        if tokens and longest:
            delta = (dout.float() * out.float()).sum(-1)
            blocks = triton.cdiv(longest, constants["ROWS"])
            shared = (ctx.mask.offsets, limits, ctx.scale, heads, groups)
            rows = (q.stride(0), k.stride(0), v.stride(0), window)
            inputs = (q, k, v, dout, logs, delta)
            backward_q[(blocks, heads, sequences)](*inputs, dq, *shared, *rows, **constants)
            backward_kv[(blocks, k.shape[1], sequences)](
                *inputs, dk, dv, *shared, *rows, **constants
            )
        return dq, dk, dv, None, None


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """See `ops/attention.py`, for `JaggedMask` masks."""
    if not isinstance(mask, JaggedMask):
        raise TypeError("this kernel takes packed sequences")
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    found: Tensor = launch.apply(JaggedAttention, q, k, v, mask, factor)
    return found
