"""Packed sequences cut over processes: which events this process computes (context parallel)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from joymigrate.run.kernels import context_parallel, ring_attention
from joymigrate.run.kernels.mask import JaggedMask


class SequenceCut:
    """Equal runs of the packed events for every process of a group.

    Where the heads divide over the processes, heads and events change places and back; else keys go
    round, and each process has an early and a late run, so that a causal mask gives all equal work.
    """

    def __init__(self, group: Any, heads: int) -> None:
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.ring = heads % self.world != 0

    def places(self, total: int) -> tuple[Tensor, int]:
        """This process's places among `total` events, and how many there are with padding."""
        unit = self.world * (2 if self.ring else 1)
        padded = max(1, -(-total // unit)) * unit
        runs = ring_attention.runs_of(padded, self.world, self.ring)[self.rank]
        return torch.cat([torch.arange(*run) for run in runs]), padded

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: JaggedMask, **more: Any) -> Tensor:
        """Of this process's events [T / P, N, D]; mask and bias describe all of them."""
        way: Any = "ring" if self.ring else "all-to-all"
        return context_parallel.attention(
            q, k, v, mask, group=self.group, way=way, zigzag=self.ring, **more
        )
