"""What an optimiser does, apart from the program's noise: its settings, and its own code run in
float64 on parameters and gradients that are the same on every machine."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import torch

SHAPES = ((16, 24), (24,))
STEPS = 3
SEED = 20240607


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """The numbers and flags of a parameter group, without those that only choose a kernel."""
    made: dict[str, Any] = {}
    for key, value in group.items():
        if key in ("params", "foreach", "fused", "capturable", "differentiable"):
            continue
        made[key] = jsonable(value)
    return made


def jsonable(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else value.tolist()
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return value if isinstance(value, bool | int | float | str | type(None)) else repr(value)


def updates_of(optimiser: Any) -> list[int]:
    """How many updates an optimiser's parameters have seen, where its state counts them. Programs
    keep values of their own beside those of parameters."""
    held = (state for state in optimiser.state.values() if isinstance(state, dict))
    counts = (state["step"] for state in held if "step" in state)
    single = (c for c in counts if not isinstance(c, torch.Tensor) or c.numel() == 1)
    return [int(c) for c in single if isinstance(c, int | float | torch.Tensor)]


def probe(optimiser: Any) -> list[dict[str, Any]]:
    """For each distinct group: what three steps do to known tensors, as sketches."""
    made: dict[str, dict[str, Any]] = {}
    for group in optimiser.param_groups:
        settings = settings_of(group)
        key = json.dumps(settings, sort_keys=True, default=str)
        if key not in made:
            made[key] = {
                "settings": settings,
                "results": [run(optimiser, group, s) for s in SHAPES],
            }
    return list(made.values())


def run(optimiser: Any, group: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Three steps on one tensor: the sketch of each update, or why there is none."""
    for plain in (False, True):
        try:
            return {"shape": list(shape), "updates": steps(optimiser, group, shape, plain)}
        except Exception as error:  # the program's own optimiser, on tensors it was not made for
            reason = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
            )
    return {"shape": list(shape), "reason": reason}


def steps(optimiser: Any, group: dict[str, Any], shape: Any, plain: bool) -> list[list[float]]:
    """The updates of three steps by a shadow of the optimiser that has one parameter."""
    random = np.random.Generator(np.random.PCG64(SEED))
    parameter = torch.nn.Parameter(torch.from_numpy(random.standard_normal(shape)))
    shadow = object.__new__(type(optimiser))
    # A scheduler puts its own `step` into the instance, and hooks belong to the real one.
    shadow.__dict__.update({k: v for k, v in vars(optimiser).items() if k != "step"})
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        shadow.__dict__[name] = OrderedDict()
    own = {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
    if plain:
        own.update({k: False for k in ("foreach", "fused", "capturable") if k in own})
    shadow.param_groups = [{**own, "params": [parameter]}]
    shadow.state = defaultdict(dict)
    made = []
    for _ in range(STEPS):
        before = parameter.detach().clone()
        parameter.grad = torch.from_numpy(random.standard_normal(shape))
        with torch.random.fork_rng(devices=[]):
            type(optimiser).step(shadow)
        update = (parameter.detach() - before).reshape(-1)
        made.append([float(v) for v in fold(update)])
    return made


def fold(update: torch.Tensor) -> torch.Tensor:
    """The sketch of an update, in float64."""
    size = update.numel()
    padded = torch.zeros(-(-size // 64) * 64, dtype=torch.float64)
    padded[:size] = update
    weights = torch.tensor([1.0 + 0.37 * r for r in range(padded.numel() // 64)]).double()
    return weights @ padded.view(-1, 64)


__all__ = ["probe", "settings_of"]
