"""Attention over sequences that are cut over processes: heads change places with positions.

Every process holds a run of each sequence, all heads. An all-to-all gives it all positions of some
heads; attention runs there under any description; a second one brings the result back (DeepSpeed
Ulysses, Jacobs et al., 2023, arXiv 2309.14509, figure 2). What a process holds of keys and values
is L · N / P rows, and the blockwise implementation makes no tensor of queries by keys.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.kernels.mask import CAUSAL, Dense, Jagged, Mask
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
) -> Tensor:
    """Attention of the whole sequences, for this process's run of positions.

    Dense q, k, v [B, heads, S / P, D], or packed [T / P, heads, D]; equal runs in rank's order;
    N and M are multiples of P. `mask` and `bias.times` describe the whole sequences. Gradients of a
    bias' tables are this process's share: add them over the group, as data parallelism does.
    """
    world = dist.get_world_size(group)
    packed = isinstance(mask, Jagged)
    heads = 1
    for name, tensor in (("query", q), ("key", k)):
        if tensor.shape[heads] % world:
            raise JoyError(
                f"{tensor.shape[heads]} {name} heads do not divide over {world} processes",
                help="use fewer processes for a sequence, or more heads",
            )
    if isinstance(mask, Dense):
        raise JoyError("a mask given as a tensor is not cut over processes", help="describe it")
    length = 0 if packed else 2
    whole = [launch.apply(Exchange, t, heads, length, group) for t in (q, k, v)]
    mine = None if bias is None else of_rank(bias, dist.get_rank(group), world)
    more: dict[str, Any] = {"scale": scale, "bias": mine, "activation": activation}
    used = {name: value for name, value in more.items() if value is not None}
    found = op("attention")(*whole, mask, **used)
    back: Tensor = launch.apply(Exchange, found, length, heads, group)
    return back


def of_rank(bias: Bias, rank: int, world: int) -> Bias:
    """The tables of a process's heads; a table for all heads stays."""

    def share(table: Tensor) -> Tensor:
        return table if table.shape[0] == 1 else table.chunk(world)[rank]

    tables = tuple(share(table) for table in bias.tables)
    return dataclasses.replace(bias.having(tables))


class Exchange(torch.autograd.Function):
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
