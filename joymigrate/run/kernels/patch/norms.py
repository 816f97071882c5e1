"""RMS norms: one weight, an epsilon, and the right numbers on a trial."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run.kernels.patch.site import ROWS, PatchSite, clone, is_patched, new_forward, same
from joymigrate.run.kernels.registry import op

OP = "rms_norm"
EPSILONS = ("variance_epsilon", "eps", "epsilon")


def sites(model: nn.Module, request: str | None) -> Iterator[PatchSite]:
    """Every RMS norm of the model."""
    tried: dict[tuple[Any, ...], float | str] = {}
    for name, module in model.named_modules():
        if not looks_like_norm(module):
            continue
        if is_patched(module):
            yield PatchSite(name, OP, reason="has a forward of its own already")
            continue
        key = (type(module), epsilon_of(module), size_of(module))
        if key not in tried:
            tried[key] = form_of(module)
        found = tried[key]
        if isinstance(found, str):
            yield PatchSite(name, OP, reason=found)
            continue
        replace = functools.partial(new_forward, module, forward_of(found, request))
        yield PatchSite(name, OP, replace, shape=(ROWS, key[2]), variant="offset" if found else "")


def looks_like_norm(module: nn.Module) -> bool:
    """One vector of weights and an epsilon, nothing below it, and a norm's name."""
    own = dict(module.named_parameters(recurse=False))
    alone = set(own) == {"weight"} and own["weight"].dim() == 1
    named = "norm" in type(module).__name__.lower()
    return (
        alone and named and not any(True for _ in module.children()) and bool(named_epsilon(module))
    )


def named_epsilon(module: nn.Module) -> str | None:
    """The attribute that holds the epsilon."""
    return next((name for name in EPSILONS if hasattr(module, name)), None)


def epsilon_of(module: nn.Module) -> float | None:
    """The epsilon, None where the module leaves it to torch."""
    value = getattr(module, named_epsilon(module) or "", None)
    return float(value) if isinstance(value, (int, float)) else None


def size_of(module: nn.Module) -> int:
    """Length of the weight."""
    return int(dict(module.named_parameters(recurse=False))["weight"].shape[0])


def form_of(module: nn.Module) -> float | str:
    """The offset of the weight (0 or 1) when the module is an RMS norm; else why it is not."""
    eps, size = epsilon_of(module), size_of(module)
    if eps is None:
        return "its epsilon depends on the dtype"
    generator = torch.Generator().manual_seed(0)
    # A mean other than zero tells an RMS norm from a layer norm.
    x = torch.randn(2, 3, size, generator=generator) + 0.5
    weight = torch.randn(size, generator=generator)
    try:
        with torch.no_grad():
            got = clone(module, {"weight": nn.Parameter(weight)})(x)
    except Exception as error:  # a norm with other arguments, such as a gate
        return f"cannot be tried alone: {type(error).__name__}"
    for offset in (0.0, 1.0):
        if same(got, op(OP).reference(x, weight, eps, offset=offset)):
            return offset
    return "computes something else than an RMS norm"


def forward_of(offset: float, request: str | None) -> Any:
    """The forward of a replaced norm."""
    kernel = op(OP)

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        eps = epsilon_of(self)
        found: Tensor = kernel(hidden_states, self.weight, eps, offset=offset, request=request)
        return found

    return forward
