"""Attention over sequences that are cut over processes, under any description.

Every process holds a run of each sequence, all heads. There are two ways:

- `all-to-all`: heads change places with positions, attention runs over all positions of some heads
  with the best implementation that there is, and the result comes back (DeepSpeed Ulysses, Jacobs
  et al., 2023, arXiv 2309.14509, figure 2). Heads divide over the processes.
- `ring`: keys and values go round, see `ring_attention.py`. Any number of heads, and of keys and
  values no process holds more than two runs; computed by `blockwise`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.kernels import ring_attention
from joymigrate.run.kernels.mask import CAUSAL, Dense, JaggedMask, Mask
from joymigrate.run.kernels.own import launch
from joymigrate.run.kernels.registry import op
from joymigrate.run.kernels.scores import Bias, Silu


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = CAUSAL,
    *,
    group: Any = None,
    scale: float | None = None,
    bias: Bias | None = None,
    activation: Silu | None = None,
    way: Literal["auto", "all-to-all", "ring"] = "auto",
    zigzag: bool = False,
) -> Tensor:
    """Attention of the whole sequences, for this process's run of positions.

    Dense q, k, v [B, heads, S / P, D], or packed [T / P, heads, D]; equal runs in rank's order, or
    with `zigzag` (a ring's) those of `ring_attention.runs_of`. `mask` and `bias.times` describe the
    whole sequences. Gradients of a bias' tables are this process's share: add them over the group,
    as data parallelism does. `auto` takes the all-to-all where heads divide. `JoyError` where heads
    or positions don't.
    """
    world = dist.get_world_size(group)
    packed = isinstance(mask, JaggedMask)
    heads = 1
    if isinstance(mask, Dense):
        raise JoyError("a mask given as a tensor is not cut over processes", help="describe it")
    if way not in ("auto", "all-to-all", "ring"):
        raise JoyError(f"unknown way '{way}'", help="auto, all-to-all or ring")
    uneven = [
        f"{tensor.shape[heads]} {name} heads do not divide over {world} processes"
        for name, tensor in (("query", q), ("key", k))
        if tensor.shape[heads] % world
    ]
    if way == "ring" or (way == "auto" and (uneven or zigzag)):
        factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
        return ring_attention.attention(
            q, k, v, mask, scale=factor, group=group, bias=bias, activation=activation,
            zigzag=zigzag,
        )  # fmt: skip
    if uneven:
        raise JoyError(uneven[0], help="take the ring: way='ring'")
    if zigzag:
        raise JoyError("an all-to-all has whole sequences: zigzag is the ring's",
                       help="way='ring'")  # fmt: skip
    length = 0 if packed else 2
    whole = [launch.apply(RingExchange, t, heads, length, group) for t in (q, k, v)]
    mine = None if bias is None else of_rank(bias, dist.get_rank(group), world)
    more: dict[str, Any] = {"scale": scale, "bias": mine, "activation": activation}
    used = {name: value for name, value in more.items() if value is not None}
    found = op("attention")(*whole, mask, **used)
    back: Tensor = launch.apply(RingExchange, found, length, heads, group)
    return back


def of_rank(bias: Bias, rank: int, world: int) -> Bias:
    """The tables of a process's heads; a table for all heads stays."""

    def share(table: Tensor) -> Tensor:
        return table if table.shape[0] == 1 else table.chunk(world)[rank]

    tables = tuple(share(table) for table in bias.tables)
    return dataclasses.replace(bias.having(tables))


class RingExchange(torch.autograd.Function):
    """Cuts axis `cut` over the processes and joins axis `join`; its gradient goes the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int, join: int, group: Any) -> Tensor:
        ctx.axes = (cut, join, group)
        return exchange(x, cut, join, group)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        cut, join, group = ctx.axes
        return exchange(given, join, cut, group), None, None, None


def exchange(x: Tensor, cut: int, join: int, group: Any) -> Tensor:
    """One all-to-all."""
    parts = [part.contiguous() for part in x.chunk(dist.get_world_size(group), cut)]
    sent = torch.stack(parts)
    arrived = torch.empty_like(sent)
    dist.all_to_all_single(arrived, sent, group=group)
    return torch.cat(list(arrived), join)
