"""Weights that FSDP1 (`FullyShardedDataParallel`) keeps: cut out of one flat tensor per wrapper, of
which each process holds a stretch. Between two calls the modules hold stretches, or no weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from joymigrate.verify.sketch import ShardPlace

FLAT = "FullyShardedDataParallel"
Place = tuple[int, str]  # id of a module, name of its weight


@dataclass(frozen=True, slots=True)
class FlatWeight:
    """One weight of a flat tensor. `start` and `size`: the stretch of its elements that this
    process holds, and `at` where that lies in the local part."""

    first: Place  # of a weight that several modules share
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    at: int
    start: int
    size: int

    @property
    def shard(self) -> ShardPlace:
        """Where the stretch lies."""
        return ShardPlace((self.start,), self.shape, flat=True)


def is_flat_wrapper(module: Any) -> bool:
    """Whether a module is FSDP1's wrapper of another."""
    return type(module).__name__ == FLAT


def flat_weights(module: torch.nn.Module) -> dict[Place, FlatWeight]:
    """All weights below a module that FSDP1 holds."""
    found: dict[Place, FlatWeight] = {}
    for member in module.modules():
        flat: Any = getattr(getattr(member, "_handle", None), "flat_param", None)
        if flat is None or not is_flat_wrapper(member):
            continue
        rows = zip(flat._param_infos, flat._shapes, flat._shard_param_infos, strict=True)
        for info, shape, held in rows:
            place = (id(info.module), info.param_name)
            found[place] = FlatWeight(
                place,
                tuple(shape),
                flat.dtype,
                flat.requires_grad,
                held.offset_in_shard or 0,
                held.intra_param_start_idx or 0,
                held.numel_in_shard or 0,
            )
        for info in flat._shared_param_infos:
            first = found[id(info.prim_module), info.prim_param_name]
            found[id(info.module), info.param_name] = first
    return found


@contextlib.contextmanager
def bring_together(module: torch.nn.Module) -> Iterator[None]:
    """In here the modules hold their whole weights; in all processes at once."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(module, recurse=True, writeback=False):
        yield
