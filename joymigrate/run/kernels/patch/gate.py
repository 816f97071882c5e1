"""SwiGLU blocks: two projections up (or one of both), silu of one times the other, one down."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run.kernels.patch.site import ROWS, PatchSite, clone, is_patched, new_forward, same
from joymigrate.run.kernels.registry import op

OP = "swiglu"
# (gate, up, down); without an up projection the gate's holds both halves.
NAMES = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("gate_up_proj", "", "down_proj"),
)
ACTIVATIONS = ("act_fn", "activation_fn", "act", "activation")


def sites(model: nn.Module, request: str | None) -> Iterator[PatchSite]:
    """Every gated block of the model."""
    tried: dict[tuple[Any, ...], str | None] = {}
    for name, module in model.named_modules():
        names = names_of(module)
        if names is None:
            continue
        if is_patched(module):
            yield PatchSite(name, OP, reason="has a forward of its own already")
            continue
        key = (type(module), names, activation_of(module))
        if key not in tried:
            tried[key] = why_not(module, names)
        reason = tried[key]
        if reason is not None:
            yield PatchSite(name, OP, reason=reason)
            continue
        replace = functools.partial(new_forward, module, forward_of(names, request))
        variant = "" if names[1] else "packed"
        yield PatchSite(name, OP, replace, shape=(ROWS, width_of(module, names)), variant=variant)


def names_of(module: nn.Module) -> tuple[str, str, str] | None:
    """The names of the projections, when the module has them as children."""
    children = dict(module.named_children())
    for names in NAMES:
        if all(name in children for name in names if name):
            return names
    return None


def activation_of(module: nn.Module) -> str:
    """The class of the activation, for the reason."""
    found = next((getattr(module, name) for name in ACTIVATIONS if hasattr(module, name)), None)
    return getattr(found, "__name__", type(found).__name__)


def width_of(module: nn.Module, names: tuple[str, str, str]) -> int:
    """Inner width of the block; adapters around a layer keep its size."""
    width = int(getattr(getattr(module, names[0]), "out_features", 4096))
    return width if names[1] else width // 2


def why_not(module: nn.Module, names: tuple[str, str, str]) -> str | None:
    """Try the block with tiny projections; None when it computes down(silu(gate) · up)."""
    torch_rng = torch.random.get_rng_state()
    try:
        torch.manual_seed(0)
        small = {
            name: nn.Linear(*(size if name != names[2] else (6, 8)))
            for name, size in zip(names, ((8, 6 if names[1] else 12), (8, 6), (6, 8)), strict=True)
            if name
        }
        x = torch.randn(2, 3, 8)
        with torch.no_grad():
            got = clone(module, children=small).eval()(x)
            want = forward_of(names, "reference")(clone(module, children=small), x)
    except Exception as error:  # a block with other arguments, such as a router
        return f"cannot be tried alone: {type(error).__name__}"
    finally:
        torch.random.set_rng_state(torch_rng)
    if same(got, want):
        return None
    return f"computes something else than silu(gate) · up (activation {activation_of(module)})"


def forward_of(names: tuple[str, str, str], request: str | None) -> Any:
    """The forward of a replaced block; projections stay modules, so adapters on them work."""
    kernel = op(OP)
    gate, up, down = names

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        first = getattr(self, gate)(hidden_states)
        pair = (first, getattr(self, up)(hidden_states)) if up else (first,)
        found: Tensor = getattr(self, down)(kernel(*pair, request=request))
        return found

    return forward
