"""How a model is called: what makes one call another kind of call than the next."""

from __future__ import annotations

from typing import Any

import torch

from joymigrate.verify import pytree


def is_training(module: Any) -> bool:
    """Whether a module trains; a graph that was frozen has no such setting."""
    return bool(getattr(module, "training", False))


def mode_of(module: Any, args: Any, kwargs: Any) -> str:
    """How a model is called: training or not, with gradients or not, one row or several, and which
    arguments are there."""
    given = pytree.arguments(args, kwargs)
    first = next((t for _, t in pytree.tensors(given)), None)
    shape = "".join("1" if n == 1 else "n" for n in first.shape) if first is not None else ""
    there = ",".join(name for name, value in given.items() if value is not None)
    training = "train" if is_training(module) else "eval"
    gradients = "gradients" if torch.is_grad_enabled() else "no gradients"
    return f"{training} {gradients} {shape} {there}"
