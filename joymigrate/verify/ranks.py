"""Which process of a distributed program this is, and what part of the batch it has."""

from __future__ import annotations

import os
from typing import Any

from joymigrate.verify import pytree


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def mesh() -> dict[str, Any] | None:
    """This process's coordinates in the device mesh, where the program made one."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    try:
        from torch.distributed.device_mesh import _mesh_resources

        found = list(getattr(_mesh_resources, "mesh_stack", []))
    except ImportError:
        found = []
    if not found:
        return {"rank": dist.get_rank()}
    names = found[-1].mesh_dim_names or ()
    return dict(zip(names, found[-1].get_coordinate() or (), strict=False))


def data_parallel(module: Any, given: Any) -> tuple[int, int, int] | None:
    """(rank, world, rows of the local batch) where each process has a part of the batch."""
    import torch.distributed as dist

    kind = type(module).__name__
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if kind != "DistributedDataParallel" and not hasattr(module, "unshard"):
        return None
    rows = next((t.shape[0] for _, t in pytree.tensors(given) if t.dim()), 0)
    return dist.get_rank(), dist.get_world_size(), int(rows)


def computes_alone(module: Any) -> bool:
    """Whether every process of a data-parallel model computes its part of the batch without the
    others, once it has all weights: it can be run by itself. A norm over all processes can't."""
    if type(module).__name__ != "DistributedDataParallel" and not hasattr(module, "unshard"):
        return False
    return not any(type(part).__name__ == "SyncBatchNorm" for part in module.modules())
