"""Attention in tiles, in plain torch, under any description; no tensor of queries by keys is made.

Queries go in blocks of ROWS, keys in runs of at most COLUMNS; runs that the mask hides are left
out, runs that it shows whole need no mask, and of the others only the tile's own mask is made. The
largest tensor is B · N · ROWS · COLUMNS scores, whatever the length.

Softmax runs online over the runs; the backward computes tiles again from L = log Σ exp:
    P = exp(S - L);  dV = Pᵀ dO;  dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O))
with SiLU:
    W = silu(S) / divisor;  dV = Wᵀ dO;  dS = silu'(S) / divisor ∘ dO Vᵀ
    dQ = scale · dS K;  dK = scale · dSᵀ Q;  a bias gets dS

Layout inside: q [B, N, S, D], k [B, M, L, D], v [B, M, L, E], G = N / M queries a key head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.mask import (
    ALL,
    CAUSAL,
    NONE,
    Causal,
    Dense,
    JaggedMask,
    Mask,
    Simple,
    Span,
)
from joymigrate.run.kernels.own import launch
from joymigrate.run.kernels.scores import Bias, Silu

ROWS = 256
STEP = 128  # columns that are judged together
COLUMNS = 1024
TOGETHER = 1 << 18  # pairs of short packed sequences that go together
SLACK = 4  # of which the longest is a fourth longer than the shortest at most
DOUT = 5  # the place of the result's gradient among the tensors of the backward pass
Fetch = Callable[[int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """A description for one call."""

    mask: Mask
    scale: float
    bias: Bias | None
    activation: Silu | None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTile:
    """Queries `rows` against keys `columns`, as positions; `whole` where nothing is hidden."""

    rows: Span
    columns: Span
    whole: bool


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = CAUSAL,
    *,
    scale: float | None = None,
    bias: Bias | None = None,
    activation: Silu | None = None,
) -> Tensor:
    """See `ops/attention.py`."""
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    plan = AttentionPlan(mask, factor, bias, activation)
    tables = bias.tables if bias is not None else ()
    found: Tensor = launch.apply(BlockwiseAttention, q, k, v, plan, *tables)
    return found


class BlockwiseAttention(torch.autograd.Function):
    """Keeps q, k, v, and with softmax the result and one number a row and head."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, *tables: Tensor
    ) -> Tensor:
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        logs = q.new_zeros(q.shape[:-1], dtype=wide(q.dtype))
        for sequence in sequences(plan, q, k, v, out, logs, made=2):
            mask, bias, (qs, ks, vs, target, log) = sequence
            inner = AttentionPlan(mask, plan.scale, bias, plan.activation)
            columns, first = (0, ks.shape[2]), ks.shape[2] - qs.shape[2]
            run_forward(qs, slices(ks, vs), columns, first, mask, inner, target, log)
        ctx.save_for_backward(q, k, v, out, logs, *tables)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logs, *tables = ctx.saved_tensors
        given: AttentionPlan = ctx.plan
        bias = given.bias.having(tuple(tables)) if given.bias is not None else None
        plan = AttentionPlan(given.mask, given.scale, bias, given.activation)
        kind = wide(q.dtype)
        dq, dk, dv = (torch.zeros_like(t, dtype=kind) for t in (q, k, v))
        dtables = [torch.zeros_like(table, dtype=kind) for table in tables]
        tensors = (q, k, v, out, logs, dout, dq, dk, dv)
        for mask, mine, views in sequences(plan, *tensors, made=3):
            inner = AttentionPlan(mask, plan.scale, mine, plan.activation)
            run_backward(mask, inner, views, dtables, views[1].shape[2] - views[0].shape[2])
        found = [made.to(table.dtype) for made, table in zip((dq, dk, dv), (q, k, v), strict=True)]
        more = [made.to(table.dtype) for made, table in zip(dtables, tables, strict=True)]
        return (*found, None, *more)


def sequences(
    plan: AttentionPlan, *tensors: Tensor, made: int = 0
) -> Iterator[tuple[Simple | Dense, Bias | None, list[Tensor]]]:
    """Views [B, heads, length, …] of the tensors: all at once, or packed ones one by one.

    Short packed sequences go together as copies; the last `made` tensors are written back.
    """
    if not tensors[0].numel() or not tensors[1].numel():
        return
    if not isinstance(plan.mask, JaggedMask):
        yield plan.mask, plan.bias, list(tensors)
        return
    bounds = plan.mask.bounds()
    alone = list(range(len(bounds)))
    if isinstance(plan.mask.inner, Causal):
        groups, alone = groups_of(bounds)
        for numbers in groups:
            yield from together(plan, [bounds[number] for number in numbers], tensors, made)
    for number in alone:
        start, stop = bounds[number]
        if start == stop:
            continue
        bias = None if plan.bias is None else plan.bias.part(start, stop)
        yield (
            plan.mask.of(number),
            bias,
            [t[start:stop].transpose(0, 1).unsqueeze(0) for t in tensors],
        )


def groups_of(bounds: Sequence[Span]) -> tuple[list[list[int]], list[int]]:
    """Sequences of like lengths (SLACK more at most) that fill a tile together, and the others."""
    order = sorted(range(len(bounds)), key=lambda n: bounds[n][1] - bounds[n][0])
    groups: list[list[int]] = []
    alone: list[int] = []
    shortest = 0
    for number in order:
        length = bounds[number][1] - bounds[number][0]
        if not length:
            continue
        if length > ROWS:
            alone.append(number)
            continue
        full = groups and (len(groups[-1]) + 1) * length * length > TOGETHER
        if not groups or full or length > shortest + max(8, shortest // SLACK):
            groups.append([])
            shortest = length
        groups[-1].append(number)
    return [one for one in groups if len(one) > 1], [
        *(one[0] for one in groups if len(one) == 1), *alone]  # fmt: skip


def together(
    plan: AttentionPlan, bounds: Sequence[Span], tensors: Sequence[Tensor], made: int
) -> Iterator[tuple[Simple | Dense, Bias | None, list[Tensor]]]:
    """One padded batch under a causal mask: no event sees the places behind its sequence's end.

    Padding repeats the last event, so that its scores are as large as real ones; its gradient is 0.
    """
    device = tensors[0].device
    starts, counts = (torch.tensor(part)[:, None] for part in zip(
        *((start, stop - start) for start, stop in bounds), strict=True))  # fmt: skip
    place = torch.arange(int(counts.max()))
    at = starts + torch.minimum(place, counts - 1)
    used = (place < counts).flatten().nonzero().squeeze(1)
    where, used = at.flatten()[used].to(device), used.to(device)
    shape, at = at.shape, at.flatten().to(device)
    given = len(tensors) - made
    views = []
    for number, tensor in enumerate(tensors):
        copy = tensor.index_select(0, at)
        if number == DOUT:
            copy = torch.zeros_like(copy).index_copy_(0, used, tensor.index_select(0, where))
        views.append(copy.unflatten(0, shape).transpose(1, 2))
    bias = plan.bias
    if bias is not None and bias.times is not None:
        asks = bias.query_times
        bias = replace(
            bias,
            times=bias.times[at].view(shape),
            query_times=None if asks is None else asks[at].view(shape),
        )
    yield CAUSAL, bias, views
    for tensor, view in zip(tensors[given:], views[given:], strict=True):
        tensor.index_copy_(0, where, view.transpose(1, 2).flatten(0, 1).index_select(0, used))


def slices(k: Tensor, v: Tensor) -> Fetch:
    """Reads runs of keys and values that lie in one tensor."""
    return lambda start, stop: (k[:, :, start:stop], v[:, :, start:stop])


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def tiles(mask: Simple | Dense, rows: Span, columns: Span) -> list[AttentionTile]:
    """The runs of keys among `columns` that a block of queries sees, each at most COLUMNS long."""
    made: list[tuple[int, int, bool]] = []
    for start in range(*columns, STEP):
        stop = min(columns[1], start + STEP)
        share = 1 if isinstance(mask, Dense) else mask.cover(rows, (start, stop))
        if share == NONE:
            continue
        whole = share == ALL
        first, last, same = made[-1] if made else (-1, -1, False)
        if last == start and same == whole and stop - first <= COLUMNS:
            made[-1] = (first, stop, whole)
        else:
            made.append((start, stop, whole))
    return [AttentionTile(rows, (start, stop), whole) for start, stop, whole in made]


def scores_of(q: Tensor, k: Tensor, tile: AttentionTile, plan: AttentionPlan, shift: int) -> Tensor:
    """Scaled scores with bias [B, N, rows, columns]."""
    batch, heads, count, size = q.shape
    folded = q.reshape(batch, k.shape[1], -1, size)
    scores = (folded @ k.transpose(-1, -2)).view(batch, heads, count, -1) * plan.scale
    if plan.bias is not None:
        scores = scores + bias_of(plan.bias, tile, shift, q.device)
    return scores


def bias_of(bias: Bias, tile: AttentionTile, shift: int, device: torch.device) -> Tensor:
    """The bias of a tile."""
    rows = torch.arange(*tile.rows, device=device)
    columns = torch.arange(*tile.columns, device=device)
    return bias.tile(rows, columns, shift)


def hidden_of(
    mask: Simple | Dense, tile: AttentionTile, shift: int, device: torch.device
) -> Tensor | None:
    """What of a tile is hidden; None where all is visible."""
    if tile.whole:
        return None
    if isinstance(mask, Dense):
        rows = slice(tile.rows[0] - shift, tile.rows[1] - shift)
        return ~whole_mask(mask)[..., rows, slice(*tile.columns)]
    i = torch.arange(*tile.rows, device=device).unsqueeze(1)
    j = torch.arange(*tile.columns, device=device).unsqueeze(0)
    return ~mask.visible(i, j)


def whole_mask(mask: Dense) -> Tensor:
    """A given tensor, four axes."""
    found = mask.tensor
    while found.dim() < 4:
        found = found.unsqueeze(0)
    return found


def weigh(weights: Tensor, values: Tensor) -> Tensor:
    """weights [B, N, rows, columns] times values [B, M, columns, E], by key head."""
    batch, heads, count, columns = weights.shape
    folded = weights.reshape(batch, values.shape[1], -1, columns)
    return (folded @ values).view(batch, heads, count, values.shape[-1])


def run_forward(
    q: Tensor,
    fetch: Fetch,
    columns: Span,
    shift: int,
    mask: Simple | Dense,
    plan: AttentionPlan,
    out: Tensor,
    logs: Tensor | None,
) -> None:
    """Fill `out` (and `logs`, with softmax) for the keys at `columns`.

    The first query is at position `shift`.
    """
    kind = wide(q.dtype)
    for start in range(0, q.shape[2], ROWS):
        stop = min(q.shape[2], start + ROWS)
        rows = q[:, :, start:stop].to(kind)
        found = tiles(mask, (start + shift, stop + shift), columns)
        if plan.activation is not None:
            total = rows.new_zeros(*rows.shape[:-1], out.shape[-1])
            for tile in found:
                keys, values = (t.to(kind) for t in fetch(*tile.columns))
                scores = scores_of(rows, keys, tile, plan, shift)
                weights = F.silu(scores)
                hidden = hidden_of(mask, tile, shift, q.device)
                if hidden is not None:
                    weights = weights.masked_fill_(hidden, 0.0)
                total += weigh(weights, values)
            out[:, :, start:stop] = (total / plan.activation.divisor).to(out.dtype)
            continue
        most = rows.new_full((*rows.shape[:-1], 1), -math.inf)
        amount = torch.zeros_like(most)
        total = rows.new_zeros(*rows.shape[:-1], out.shape[-1])
        for tile in found:
            keys, values = (t.to(kind) for t in fetch(*tile.columns))
            scores = scores_of(rows, keys, tile, plan, shift)
            hidden = hidden_of(mask, tile, shift, q.device)
            if hidden is not None:
                scores = scores.masked_fill_(hidden, -math.inf)
            new = torch.maximum(most, scores.amax(-1, keepdim=True))
            safe = new.masked_fill(new == -math.inf, 0.0)
            weights = scores.sub_(safe).exp_()
            shrink = (most - safe).exp_()
            amount = amount * shrink + weights.sum(-1, keepdim=True)
            total = total * shrink + weigh(weights, values)
            most = new
        empty = amount == 0
        amount = amount.masked_fill(empty, 1.0)
        out[:, :, start:stop] = (total / amount).to(out.dtype)
        if logs is not None:
            # An infinite log makes the weights of a row that sees nothing zero.
            log = (most + amount.log()).masked_fill(empty, math.inf)
            logs[:, :, start:stop] = log.squeeze(-1)


def run_backward(
    mask: Simple | Dense,
    plan: AttentionPlan,
    views: list[Tensor],
    dtables: list[Tensor],
    shift: int,
    start_of_keys: int = 0,
) -> None:
    """Add to the gradients of one dense problem, or of a run of its queries and one of its keys.

    The first query is at position `shift`, the first key at `start_of_keys`.
    """
    q, k, v, out, logs, dout, dq, dk, dv = views
    kind, columns = wide(q.dtype), (start_of_keys, start_of_keys + k.shape[2])
    for start in range(0, q.shape[2], ROWS):
        stop = min(q.shape[2], start + ROWS)
        rows = q[:, :, start:stop].to(kind)
        given = dout[:, :, start:stop].to(kind)
        less = (given * out[:, :, start:stop].to(kind)).sum(-1, keepdim=True)
        log = logs[:, :, start:stop].unsqueeze(-1)
        for tile in tiles(mask, (start + shift, stop + shift), columns):
            run = slice(*(place - start_of_keys for place in tile.columns))
            keys, values = k[:, :, run].to(kind), v[:, :, run].to(kind)
            scores = scores_of(rows, keys, tile, plan, shift)
            hidden = hidden_of(mask, tile, shift, q.device)
            pairs = fold(given, values.shape[1]) @ values.transpose(-1, -2)
            pairs = pairs.view_as(scores)
            if plan.activation is None:
                weights = (scores - log).exp_()
                slope = pairs.sub_(less).mul_(weights)
            else:
                gate = scores.sigmoid()
                weights = scores * gate / plan.activation.divisor
                slope = pairs.mul_(gate * (1 + scores * (1 - gate)) / plan.activation.divisor)
            if hidden is not None:
                weights, slope = (t.masked_fill(hidden, 0.0) for t in (weights, slope))
            heads = keys.shape[1]
            dv[:, :, run] += fold(weights, heads).transpose(-1, -2) @ fold(given, heads)
            dk[:, :, run] += fold(slope, heads).transpose(-1, -2) @ fold(rows, heads) * plan.scale
            dq[:, :, start:stop] += weigh(slope, keys) * plan.scale
            if plan.bias is not None:
                learn(plan.bias, tile, shift, slope, dtables)


def fold(x: Tensor, heads: int) -> Tensor:
    """[B, N, rows, …] as [B, M, G · rows, …]."""
    return x.reshape(x.shape[0], heads, -1, x.shape[-1])


def learn(
    bias: Bias, tile: AttentionTile, shift: int, slope: Tensor, dtables: list[Tensor]
) -> None:
    """Add a tile's share to the gradients of the bias' tables."""
    with torch.enable_grad():
        tables = tuple(table.detach().requires_grad_() for table in bias.tables)
        added = bias_of(bias.having(tables), tile, shift, slope.device)
        given = slope.sum_to_size(added.shape).to(added.dtype)
        found = torch.autograd.grad(added, tables, given)
    for total, one in zip(dtables, found, strict=True):
        total += one
