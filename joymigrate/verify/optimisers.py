"""What an optimiser does, apart from the program's noise: its settings, and its own code run in
float64 on parameters and gradients that are the same on every machine."""

from __future__ import annotations

import inspect
import json
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from joymigrate.verify.call_trace import CallTrace

SHAPES = ((16, 24), (24,))
STEPS = 3
SEED = 20240607
CURVED = 0.5  # how the gradient of a closure grows with the parameter
MOST_SEEN = 10_000  # objects that an optimiser holds, in which parameters are looked for
SIMPLE = (type, types.ModuleType, str, bytes, int, float, type(None))
PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
            trace = CallTrace(lambda: "")
            with torch._C._EnableTorchFunction(), trace:
                first = run(optimiser, group, SHAPES[:1])
            made[key] = {
                "settings": settings,
                "trace": trace.calls.get("", []),
                "results": [first, *(run(optimiser, group, [s]) for s in SHAPES[1:])],
                # A rule may take the norm of all gradients of a group.
                "together": run(optimiser, group, SHAPES),
            }
    return list(made.values())


def run(optimiser: Any, group: dict[str, Any], shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Three steps on one tensor or several: the sketch of each update, or why there is none."""
    sizes = list(shapes[0]) if len(shapes) == 1 else [list(shape) for shape in shapes]
    reason = ""
    for plain, sparse in ((False, False), (True, False), (True, True)):
        try:
            return {"shape": sizes, "updates": steps(optimiser, group, shapes, plain, sparse)}
        except Exception as error:  # the program's own optimiser, on tensors it was not made for
            what = str(error).splitlines()[0][:200] if str(error) else ""
            reason = reason if sparse else f"{type(error).__name__}: {what}"
    return {"shape": sizes, "reason": reason}


def steps(
    optimiser: Any,
    group: dict[str, Any],
    shapes: Sequence[tuple[int, ...]],
    plain: bool,
    sparse: bool = False,
) -> list[list[float]]:
    """The updates of three steps by a shadow of the optimiser that has one parameter of each
    shape. `sparse`: gradients hold rows, as those of embeddings may."""
    random = np.random.Generator(np.random.PCG64(SEED))
    made_up = [torch.nn.Parameter(torch.from_numpy(random.standard_normal(s))) for s in shapes]
    shadow = shadow_of(optimiser, group, made_up, plain)
    closing = needs_closure(optimiser)
    made = []
    for _ in range(STEPS):
        before = [p.detach().clone() for p in made_up]
        slopes = [torch.from_numpy(random.standard_normal(s)) for s in shapes]
        slopes = [slope.to_sparse(1) for slope in slopes] if sparse else slopes

        def closure(slopes: list[torch.Tensor] = slopes) -> torch.Tensor:
            value = torch.zeros((), dtype=torch.float64)
            for p, slope in zip(made_up, slopes, strict=True):
                held = p.detach()
                p.grad = slope + CURVED * held
                value += (slope * held + CURVED / 2 * held**2).sum()
            return value

        for p, slope in zip(made_up, slopes, strict=True):
            p.grad = slope
        with torch.random.fork_rng(devices=[]):
            type(optimiser).step(shadow, *((closure,) if closing else ()))
        moved = [(p.detach() - b).reshape(-1) for p, b in zip(made_up, before, strict=True)]
        made.append([float(v) for update in moved for v in fold(update)])
    return made


def shadow_of(
    optimiser: Any, group: dict[str, Any], made_up: list[torch.nn.Parameter], plain: bool
) -> Any:
    """An optimiser with the settings of one group, the parameters of a probe and no state.

    Raises ValueError where it can't be taken from the program's parameters.
    """
    shadow = object.__new__(type(optimiser))
    # A scheduler puts its own `step` into the instance, and hooks belong to the real one.
    shadow.__dict__.update({k: v for k, v in vars(optimiser).items() if k != "step"})
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        shadow.__dict__[name] = OrderedDict()
    own = {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
    if plain:
        own.update({k: False for k in ("foreach", "fused", "capturable") if k in own})
    shadow.param_groups = [{**own, "params": made_up}]
    shadow.state = defaultdict(dict)
    hold_alone(shadow, optimiser, group, made_up, plain)
    return shadow


def needs_closure(optimiser: Any) -> bool:
    """Whether an optimiser steps with a closure alone (it asks for gradients at other places)."""
    asked = list(inspect.signature(type(optimiser).step).parameters.values())[1:2]
    return bool(asked) and asked[0].default is inspect.Parameter.empty and asked[0].kind in PLACED


def hold_alone(
    shadow: Any,
    optimiser: Any,
    group: dict[str, Any],
    made_up: list[torch.nn.Parameter],
    plain: bool,
) -> None:
    """Lists of the program's parameters that an optimiser keeps beside its groups (LBFGS), and
    optimisers inside of it (SAM, Lookahead), become those of the probe: its step must not write
    into the program's.

    Raises ValueError where they are kept in another way.
    """
    real = {id(p) for one in optimiser.param_groups for p in one["params"]}
    for name, value in list(vars(shadow).items()):
        if name in ("param_groups", "state", "defaults"):
            continue
        if isinstance(value, list | tuple) and value and all(id(p) in real for p in value):
            shadow.__dict__[name] = made_up
        elif isinstance(value, torch.optim.Optimizer):
            ours = {id(p) for p in group["params"]}
            same = [g for g in value.param_groups if ours & {id(p) for p in g["params"]}]
            if not same:
                raise ValueError(f"the optimiser in `{name}` has other parameters")
            inner = shadow_of(value, same[0], made_up, plain)
            if value.param_groups is optimiser.param_groups:
                inner.param_groups = shadow.param_groups
            shadow.__dict__[name] = inner
        elif reaches(value, real):
            raise ValueError(f"the optimiser holds its parameters in `{name}`")


def reaches(value: Any, real: set[int]) -> bool:
    """Whether containers, objects, bound methods and closures lead to one of these tensors."""
    left: list[Any] = [value]
    seen: dict[int, Any] = {}
    while left and len(seen) < MOST_SEEN:
        one = left.pop()
        if id(one) in real:
            return True
        if id(one) in seen or isinstance(one, SIMPLE):
            continue
        seen[id(one)] = one
        if isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset | deque):
            left += one
        left += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
        left += [getattr(one, "__self__", None), *getattr(one, "__dict__", {}).values()]
    return False


def fold(update: torch.Tensor) -> torch.Tensor:
    """The sketch of an update, in float64."""
    size = update.numel()
    padded = torch.zeros(-(-size // 64) * 64, dtype=torch.float64)
    padded[:size] = update
    weights = torch.tensor([1.0 + 0.37 * r for r in range(padded.numel() // 64)]).double()
    return weights @ padded.view(-1, 64)


__all__ = ["probe", "settings_of"]
