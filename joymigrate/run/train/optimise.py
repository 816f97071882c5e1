"""Optimisers over sharded and plain parameters, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import Any

from joymigrate.run.train.job import Optimiser, Schedule


def optimiser(model: Any, wish: Optimiser, device: str) -> Any:
    """The optimiser of a job over the trainable parameters of `model`."""
    import torch

    groups = group_parameters(model, wish.weight_decay)
    fused = device in ("cpu", "cuda")
    if wish.name == "sgd":
        # torch 2.13 has no rule for its fused SGD on sharded parameters
        whole = not any(hasattr(p, "device_mesh") for g in groups for p in g["params"])
        chosen = fused and whole
        return torch.optim.SGD(groups, lr=wish.lr, momentum=wish.momentum, fused=chosen)
    betas = (wish.betas[0], wish.betas[1])
    # None: torch chooses; a chip without a fused kernel gets the grouped form.
    kernel = True if fused else None
    return torch.optim.AdamW(groups, lr=wish.lr, betas=betas, eps=wish.eps, fused=kernel)


def group_parameters(model: Any, decay: float) -> list[dict[str, Any]]:
    """Parameters by weight decay and by mesh: one call of a grouped kernel takes no mixture."""
    from torch.distributed.tensor import DTensor

    found: dict[tuple[float, Any], list[Any]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        share = decay if parameter.ndim >= 2 else 0.0
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault((share, mesh), []).append(parameter)
    return [{"params": params, "weight_decay": share} for (share, _), params in found.items()]


def factor(schedule: Schedule, step: int, steps: int) -> float:
    """The learning rate at `step` (from 0) of `steps`, as a share of the largest."""
    share = schedule.warmup < 1
    warmup = math.ceil(schedule.warmup * steps) if share else int(schedule.warmup)
    if step < warmup:
        return (step + 1) / warmup
    if schedule.name == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    done = min(1.0, done)
    left = 1.0 - done if schedule.name == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return schedule.floor + (1.0 - schedule.floor) * left


def set_rate(made: Any, rate: float) -> None:
    """Give all groups a learning rate."""
    for group in made.param_groups:
        group["lr"] = rate
