"""The norm of all gradients over every kind of sharding, and clipping by it.

torch's own `clip_grad_norm_` cannot mix plain tensors with DTensors, which tensor parallel models
have, and knows nothing of pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

PIECE_BYTES = 32 << 20

if TYPE_CHECKING:
    import torch


def global_norm(
    parameters: Iterable[torch.nn.Parameter], stages: Any = None, skip: Any = None
) -> torch.Tensor:
    """The 2-norm of all gradients, equal on every rank, as a tensor on the gradients' device.

    `stages` is the group of pipeline ranks; `skip` a parameter that another stage counts.
    """
    import torch
    import torch.distributed as dist

    total: torch.Tensor | None = None
    for (mesh, placements), locals_ in by_placement(parameters, skip).items():
        square = torch.stack(torch._foreach_norm(locals_)).float().square().sum()
        if mesh is not None:
            for dim, placement in enumerate(placements):
                if not placement.is_replicate():  # strided shards count as shards too
                    dist.all_reduce(square, group=mesh.get_group(dim))
        total = square if total is None else total + square
    if total is None:
        total = torch.zeros(())
    if stages is not None:
        dist.all_reduce(total, group=stages)
    return total.sqrt()


def by_placement(
    parameters: Iterable[torch.nn.Parameter], skip: Any
) -> dict[tuple[Any, Any], list[torch.Tensor]]:
    """Local gradients grouped by how they are sharded."""
    from torch.distributed.tensor import DTensor

    found: dict[tuple[Any, Any], list[torch.Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or parameter is skip:
            continue
        if isinstance(gradient, DTensor):
            if any(placement.is_partial() for placement in gradient.placements):
                placed: Any = parameter
                gradient = gradient.redistribute(placements=placed.placements)
                parameter.grad = gradient
            key = (gradient.device_mesh, gradient.placements)
            found.setdefault(key, []).append(gradient.to_local())
        else:
            found.setdefault((None, None), []).append(gradient)
    return found


def average(parameters: Iterable[torch.nn.Parameter], group: Any) -> None:
    """Average gradients over copies of a model, a few large pieces at a time."""
    import torch.distributed as dist

    waiting: list[torch.Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        local = local_of(parameter.grad)
        if waiting and (local.dtype != waiting[0].dtype or size > PIECE_BYTES):
            exchange(waiting, group, dist)
            waiting, size = [], 0
        waiting.append(local)
        size += local.numel() * local.element_size()
    if waiting:
        exchange(waiting, group, dist)


def exchange(tensors: list[torch.Tensor], group: Any, dist: Any) -> None:
    """Average some tensors of one type as one message."""
    import torch

    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


def local_of(tensor: Any) -> torch.Tensor:
    """This rank's part."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def clip(parameters: Iterable[torch.nn.Parameter], norm: torch.Tensor, limit: float) -> None:
    """Scale all gradients so that their norm is at most `limit`. Never waits for the device."""
    import torch

    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    locals_ = [local_of(p.grad) for p in parameters if p.grad is not None]
    if locals_:
        torch._foreach_mul_(locals_, scale.to(locals_[0].device))
