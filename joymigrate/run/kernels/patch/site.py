"""A place in a model where an operator could stand, and the ways to change a module back."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

Undo = Callable[[], None]
ROWS = 2048  # tokens of a typical call, for choosing before the first one


@dataclass(frozen=True, slots=True)
class PatchSite:
    """`replace` puts the operator in and returns how to take it out; None: left, for `reason`.

    `shape` and `variant` are those of a typical call.
    """

    module: str
    op: str
    replace: Callable[[], Undo] | None = None
    reason: str = ""
    shape: tuple[int, ...] = ()
    variant: str = ""


def new_forward(module: nn.Module, forward: Callable[..., Any]) -> Undo:
    """Give one module another forward, as a method of the instance: hooks, parameters, names and
    class stay, and a deep copy of the model is bound to itself."""
    before = module.__dict__.get("forward")
    module.forward = types.MethodType(forward, module)

    def undo() -> None:
        if before is None:
            module.__dict__.pop("forward", None)
        else:
            module.forward = before

    return undo


def is_patched(module: nn.Module) -> bool:
    """Whether this module has a forward of its own already."""
    return "forward" in module.__dict__


def clone(
    module: nn.Module,
    parameters: Mapping[str, Any] | None = None,
    children: Mapping[str, nn.Module] | None = None,
) -> nn.Module:
    """A shallow copy with other parameters and children and without hooks, to try things on."""
    made = copy.copy(module)
    for name, changes in (("_parameters", parameters), ("_modules", children)):
        made.__dict__[name] = {**module.__dict__[name], **(changes or {})}
    for name in list(made.__dict__):
        if name.endswith("_hooks") or name.endswith("_hooks_with_kwargs"):
            made.__dict__[name] = type(made.__dict__[name])()
    made.__dict__.pop("forward", None)
    return made


def same(got: Any, want: Any) -> bool:
    """Whether two float32 results of a trial are the same but for rounding."""
    import torch

    if not isinstance(got, torch.Tensor) or got.shape != want.shape:
        return False
    return bool(torch.allclose(got, want, rtol=1e-4, atol=1e-5))
