"""Which step of the training a state is of that is loaded into a model."""

from __future__ import annotations

import torch

from joymigrate.verify.inventory import hashable
from joymigrate.verify.module_names import plain
from joymigrate.verify.run_watch import MARK, SAMPLED, RunWatch, mark, sample_strided

MOST_STEPS = 64  # of one weight whose values a copy may have


def local_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Floating weights and buffers of a module whose bytes lie in this process, by plain names."""
    named: list[tuple[str, torch.Tensor]] = [*module.named_parameters(remove_duplicate=False)]
    named += [*module.named_buffers(remove_duplicate=False)]
    return {plain(n): t for n, t in named if hashable(t) and t.is_floating_point()}


def steps_of(tensor: torch.Tensor, source: str, watch: RunWatch) -> list[int]:
    """Steps after which the source had these values, by those that are watched."""
    series = watch.series.get(f"{MARK}{source}", [])
    if not series:
        return []
    mine = mark(sample_strided(tensor.detach(), SAMPLED).float()).tolist()
    return [int(step) for step, *values in series if values == mine][-MOST_STEPS:]


def steps_of_model(root: str, module: torch.nn.Module, watch: RunWatch) -> set[int] | None:
    """Steps after which a model had all the values that it has now, by those that are watched; None
    where none of its weights is."""
    watch.flush()
    found = [
        set(steps_of(tensor, f"{root}:{name}", watch))
        for name, tensor in local_tensors(module).items()
        if f"{MARK}{root}:{name}" in watch.series
    ]
    return set.intersection(*found) if found else None
