"""Which process of a distributed program this is, and what part of the batch it has."""

from __future__ import annotations

import os
from typing import Any

from joymigrate.verify import pytree
from joymigrate.verify.flat_weights import FLAT


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
    """(part, parts, rows of the local batch) where each process has a part of the batch."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or not is_data_parallel(module):
        return None
    rows = next((t.shape[0] for _, t in pytree.tensors(given) if t.dim()), 0)
    return *part_of_batch(module), int(rows)


def is_data_parallel(module: Any) -> bool:
    """Whether a model is wrapped so that each process calls it with a part of the batch."""
    wrappers = ("DistributedDataParallel", "DeepSpeedEngine", FLAT)
    return type(module).__name__ in wrappers or hasattr(module, "unshard")


def part_of_batch(module: Any) -> tuple[int, int]:
    """Which part of the batch this process has, and how many there are: processes that share a
    model by other means (tensor parallel) have the same part."""
    import torch.distributed as dist

    group = getattr(module, "process_group", None)
    if group is not None:
        return dist.get_rank(group), dist.get_world_size(group)
    if hasattr(module, "_get_fsdp_state"):
        parts = [p for m in module.modules() if hasattr(m, "_get_fsdp_state") for p in groups_of(m)]
        for part in parts:
            shards, copies = (
                (getattr(part.mesh_info, f"{kind}_mesh_rank", 0),
                 getattr(part.mesh_info, f"{kind}_mesh_size", 1))
                for kind in ("shard", "replicate")
            )  # fmt: skip
            return copies[0] * shards[1] + shards[0], copies[1] * shards[1]
    return dist.get_rank(), dist.get_world_size()


def groups_of(module: Any) -> list[Any]:
    """FSDP2's groups of parameters of one module; torch 2.14 has several, earlier ones one."""
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is None:
        several = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in several if group is not None]


def computes_alone(module: Any) -> bool:
    """Whether every process of a data-parallel model computes its part of the batch without the
    others, once it has all weights: it can be run by itself. A norm over all processes can't."""
    if not is_data_parallel(module):
        return False
    return not any(type(part).__name__ == "SyncBatchNorm" for part in module.modules())
