"""Local parts that a program takes out of distributed tensors, and where in the whole they lie.

Tensor-parallel modules hand plain tensors on: one process's part, without a trace of the rest.
"""

from __future__ import annotations

from typing import Any

import torch

from joymigrate.verify.identity_map import IdentityMap
from joymigrate.verify.sketch import ShardPlace

Spread = tuple[str, ShardPlace]


class ShardMap:
    """What `DTensor.to_local` gave, as long as it lives."""

    def __init__(self) -> None:
        self.known: IdentityMap[Spread] = IdentityMap()

    def note(self, whole: Any, local: torch.Tensor) -> None:
        """Remember where a local part lies; one that every process has whole needs no note."""
        found = local_part(whole)[1]
        if found is not None:
            self.known.put(local, found)

    def of(self, tensor: torch.Tensor) -> Spread | None:
        """Where this very tensor lies, if it is known."""
        return self.known.get(tensor)


def local_part(tensor: Any) -> tuple[torch.Tensor, Spread | None]:
    """The local part of a DTensor, and where it lies in the global one."""
    from torch.distributed.tensor import Partial, Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local, mesh, placements = tensor._local_tensor, tensor.device_mesh, tensor.placements
    if all(isinstance(p, Replicate) for p in placements):
        return local, None
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    coordinate = mesh.get_coordinate() or ()
    # Of the ranks that hold the same block one counts; of partial sums every one does.
    for at, placement in zip(coordinate, placements, strict=True):
        if isinstance(placement, Replicate) and at:
            return local, ("copy", ShardPlace(tuple(offset), tuple(tensor.shape)))
    partial = any(isinstance(p, Partial) for p in placements)
    part = ",".join(map(str, (*offset, *(coordinate if partial else ()))))
    kind = f"{'partial' if partial else 'shard'} {part}"
    return local, (kind, ShardPlace(tuple(offset), tuple(tensor.shape)))


def wait_for(tensor: torch.Tensor) -> torch.Tensor:
    """The result of a collective that may still be under way, once it is there."""
    if type(tensor).__name__ != "AsyncCollectiveTensor":
        return tensor
    return tensor.trigger_wait()  # type: ignore[attr-defined,no-any-return]
