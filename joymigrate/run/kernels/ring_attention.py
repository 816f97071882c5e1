"""Attention over sequences that are cut over processes: keys and values go round a ring.

A process keeps its queries. What it holds of keys and values goes to the next process while it
computes with them; after P steps every query met every key (Liu, Zaharia and Abbeel, 2023, arXiv
2310.01889). Softmax' partial results of a row are joined by L = log Σ exp:
    L = log(exp L₁ + exp L₂),  O = exp(L₁ - L) O₁ + exp(L₂ - L) O₂
In the backward pass gradients of keys and values go round with them and come home. Any number of
heads will do. A process holds 2 runs of keys and values, and blocks of scores.

Under a causal mask equal runs are unequal work: the last process sees all keys. With `zigzag` the
sequence is cut into 2 P runs, and process r has run r and run 2 P - 1 - r.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.kernels.mask import NONE, JaggedMask, Simple, Span
from joymigrate.run.kernels.own import blockwise_attention as blockwise
from joymigrate.run.kernels.own import launch
from joymigrate.run.kernels.scores import Bias, Silu

Runs = tuple[Span, ...]  # positions that a process holds, in its order


def runs_of(length: int, world: int, zigzag: bool = False) -> list[Runs]:
    """Which positions each process holds. `JoyError` where they don't divide."""
    count = 2 * world if zigzag else world
    if length % count:
        raise JoyError(
            f"{length} positions do not divide into {count} equal runs",
            help="pad the sequences to a multiple",
        )
    size = length // count
    runs = [(at * size, (at + 1) * size) for at in range(count)]
    if not zigzag:
        return [(run,) for run in runs]
    return [(runs[rank], runs[count - 1 - rank]) for rank in range(world)]


def share_of(x: Tensor, axis: int, rank: int, world: int, zigzag: bool = False) -> Tensor:
    """The part of a whole tensor that a process holds."""
    runs = runs_of(x.shape[axis], world, zigzag)[rank]
    return torch.cat([x.narrow(axis, start, stop - start) for start, stop in runs], axis)


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """Who holds what."""

    group: Any
    rank: int
    runs: list[Runs]  # by rank
    axis: int  # of positions: 0 packed, 2 dense

    @property
    def world(self) -> int:
        return len(self.runs)

    def send_on(self, given: Tensor) -> tuple[Tensor, list[Any]]:
        """What the process before has held arrives when the works are done."""
        if self.world == 1:  # nobody sends to itself
            return given, []
        after, before = (
            place if self.group is None else dist.get_global_rank(self.group, place)
            for place in ((self.rank + 1) % self.world, (self.rank - 1) % self.world)
        )
        arriving = torch.empty_like(given)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, given, after, self.group),
            dist.P2POp(dist.irecv, arriving, before, self.group),
        ])  # fmt: skip
        return arriving, works


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Simple | JaggedMask,
    *,
    scale: float,
    group: Any = None,
    bias: Bias | None = None,
    activation: Silu | None = None,
    zigzag: bool = False,
) -> Tensor:
    """See `context_parallel.attention`."""
    world, axis = dist.get_world_size(group), 0 if isinstance(mask, JaggedMask) else 2
    runs = runs_of(q.shape[axis] * world, world, zigzag)
    if k.shape[axis] != q.shape[axis]:
        raise JoyError(
            f"{q.shape[axis]} positions of queries, {k.shape[axis]} of keys in one process",
            help="a ring takes as many keys as queries",
        )
    plan = blockwise.AttentionPlan(mask, scale, bias, activation)
    tables = bias.tables if bias is not None else ()
    ring = Ring(group, dist.get_rank(group), runs, axis)
    found: Tensor = launch.apply(RingAttention, q, k, v, plan, ring, *tables)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """A run of this process's queries and one of the present keys, in one sequence."""

    mask: Simple
    bias: Bias | None
    queries: slice  # of what this process holds
    keys: slice  # of what is here now
    shift: int  # the first query's position in the sequence
    columns: Span  # the keys' positions in the sequence


def meetings(plan: blockwise.AttentionPlan, queries: Runs, keys: Runs) -> Iterator[Meeting]:
    """All of them that show anything."""
    mask = plan.mask
    packed = isinstance(mask, JaggedMask)
    bounds = mask.bounds() if isinstance(mask, JaggedMask) else [(0, 1 << 62)]
    for (at, run), (there, other) in itertools.product(place_runs(queries), place_runs(keys)):
        for number, (start, stop) in enumerate(bounds):
            rows, columns = inside(run, start, stop), inside(other, start, stop)
            if rows[0] >= rows[1] or columns[0] >= columns[1]:
                continue
            inner: Any = mask.of(number) if isinstance(mask, JaggedMask) else mask
            mine = (rows[0] - start, rows[1] - start)
            theirs = (columns[0] - start, columns[1] - start)
            if inner.cover(mine, theirs) == NONE:
                continue
            bias = plan.bias.part(start, stop) if packed and plan.bias is not None else plan.bias
            if bias is not None and bias.query_times is not None:
                asks = bias.query_times[:, mine[0] : mine[1]]
                bias = dataclasses.replace(bias, query_times=asks)
            yield Meeting(
                inner, bias,
                slice(at + rows[0] - run[0], at + rows[1] - run[0]),
                slice(there + columns[0] - other[0], there + columns[1] - other[0]),
                mine[0], theirs,
            )  # fmt: skip


def place_runs(runs: Runs) -> list[tuple[int, Span]]:
    """Runs with where they begin in the tensors of who holds them."""
    sizes = [stop - start for start, stop in runs]
    return list(zip(itertools.accumulate([0, *sizes]), runs, strict=False))


def inside(run: Span, start: int, stop: int) -> Span:
    """What of a run lies in a sequence."""
    return max(run[0], start), min(run[1], stop)


class RingAttention(torch.autograd.Function):
    """Keeps what this process holds, the result and one number a row and head."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: blockwise.AttentionPlan,
        ring: Ring,
        *tables: Tensor,
    ) -> Tensor:
        kind = blockwise.wide(q.dtype)
        out = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=kind)
        logs = q.new_full(q.shape[:-1], -torch.inf, dtype=kind)
        for keys, source in round_trip(ring, pack(k, v)):
            ks, vs = unpack(keys, k, v)
            for one in meetings(plan, ring.runs[ring.rank], ring.runs[source]):
                add_part(one, plan, ring, q, ks, vs, out, logs)
        logs = logs.masked_fill(logs == -torch.inf, torch.inf)  # rows that see nothing
        found = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, found, logs, *tables)
        ctx.plan, ctx.ring = plan, ring
        return found

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logs, *tables = ctx.saved_tensors
        given: blockwise.AttentionPlan = ctx.plan
        ring: Ring = ctx.ring
        bias = given.bias.having(tuple(tables)) if given.bias is not None else None
        plan = dataclasses.replace(given, bias=bias)
        kind = blockwise.wide(q.dtype)
        dq = torch.zeros_like(q, dtype=kind)
        dtables = [torch.zeros_like(table, dtype=kind) for table in tables]
        slopes = torch.zeros(k.numel() + v.numel(), dtype=kind, device=k.device)
        for keys, source in round_trip(ring, pack(k, v)):
            ks, vs = unpack(keys, k, v)
            dk, dv = unpack(slopes, k, v)
            for one in meetings(plan, ring.runs[ring.rank], ring.runs[source]):
                inner = blockwise.AttentionPlan(one.mask, plan.scale, one.bias, plan.activation)
                mine = [dense(t[rows_of(one.queries, ring)], ring) for t in (q, out, logs, dout)]
                rows, results, log, slope = mine
                there = [dense(t[rows_of(one.keys, ring)], ring) for t in (ks, vs, dk, dv)]
                into = dense(dq[rows_of(one.queries, ring)], ring)
                views = [rows, *there[:2], results, log, slope, into, *there[2:]]
                blockwise.run_backward(one.mask, inner, views, dtables, one.shift, one.columns[0])
            # Gradients go on with the keys that they belong to, and after the last step home.
            slopes, works = ring.send_on(slopes)
            for work in works:
                work.wait()
        dk, dv = unpack(slopes, k, v)
        more = [made.to(table.dtype) for made, table in zip(dtables, tables, strict=True)]
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, *more


def round_trip(ring: Ring, held: Tensor) -> Iterator[tuple[Tensor, int]]:
    """What every process holds, one after the other, with its rank; it is sent on meanwhile."""
    for step in range(ring.world):
        last = step + 1 == ring.world
        arriving, works = (held, []) if last else ring.send_on(held)
        yield held, (ring.rank - step) % ring.world
        for work in works:
            work.wait()
        held = arriving


def add_part(
    one: Meeting, plan: blockwise.AttentionPlan, ring: Ring, q: Tensor, k: Tensor, v: Tensor,
    out: Tensor, logs: Tensor,
) -> None:  # fmt: skip
    """Join the result of a meeting to what its rows have so far."""
    mine = rows_of(one.queries, ring)
    rows, total, log = (dense(t[mine], ring) for t in (q, out, logs))
    keys, values = (dense(t[rows_of(one.keys, ring)], ring) for t in (k, v))
    part, part_log = torch.zeros_like(total), torch.zeros_like(log)
    first = one.columns[0]
    inner = blockwise.AttentionPlan(one.mask, plan.scale, one.bias, plan.activation)

    def fetch(start: int, stop: int) -> tuple[Tensor, Tensor]:
        run = slice(start - first, stop - first)
        return keys[:, :, run], values[:, :, run]

    blockwise.run_forward(rows, fetch, one.columns, one.shift, one.mask, inner, part, part_log)
    if plan.activation is not None:
        total += part
        return
    part_log = part_log.masked_fill(part_log == torch.inf, -torch.inf)
    joined = torch.logaddexp(log, part_log)
    safe = joined.masked_fill(joined == -torch.inf, 0.0)
    total *= (log - safe).exp().unsqueeze(-1)
    total += part * (part_log - safe).exp().unsqueeze(-1)
    log.copy_(joined)


def rows_of(places: slice, ring: Ring) -> tuple[slice, ...]:
    """An index of positions."""
    return (slice(None),) * ring.axis + (places,)


def dense(x: Tensor, ring: Ring) -> Tensor:
    """A view [B, heads, length, …]."""
    return x if ring.axis else x.transpose(0, 1).unsqueeze(0)


def pack(k: Tensor, v: Tensor) -> Tensor:
    """One message."""
    return torch.cat([k.reshape(-1), v.reshape(-1)])


def unpack(message: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Views of it, with the shapes of k and v."""
    keys, values = torch.split(message, [k.numel(), v.numel()])
    return keys.view(k.shape), values.view(v.shape)
