"""Gradients of a reference by torch's own autograd, also inside a dispatcher kernel.

A kernel runs below autograd: the dispatcher excludes the autograd keys for the thread, and a
tensor made there "does not require grad". The keys of the CPU are handed back for the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Maybe = Tensor | None


@contextmanager
def autograd_enabled() -> Iterator[None]:
    """Record gradients of CPU tensors, whatever the dispatcher excluded."""
    backend: Any = torch._C
    excluded = backend._dispatch_tls_local_exclude_set()
    for name in ("AutogradCPU", "AutogradOther", "ADInplaceOrView", "AutogradFunctionality"):
        if hasattr(backend.DispatchKey, name):
            excluded = excluded.remove(getattr(backend.DispatchKey, name))
    included = backend._dispatch_tls_local_include_set()
    with (
        backend._ForceDispatchKeyGuard(included, excluded),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def working(tensor: Tensor) -> Tensor:
    """The tensor in the precision that chip kernels accumulate in: float32, float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def vjp(
    function: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Maybe],
    gradients: Maybe | Sequence[Maybe],
) -> tuple[Maybe, ...]:
    """Gradient of `function(*inputs)` for each input, in the input's dtype; None stays None.

    Inputs are upcast (`working`) before the call, so that a half-precision gradient is rounded
    once. `gradients` belongs to the outputs in order; an output without gradient is skipped.
    """
    with autograd_enabled():
        leaves = [_leaf(value) for value in inputs]
        outputs = function(*leaves)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        grads = [gradients] if isinstance(gradients, Tensor) or gradients is None else gradients
        pairs = [
            (output, grad.detach().clone().to(output.dtype))
            for output, grad in zip(outputs, grads, strict=False)
            if grad is not None and output.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        if not pairs or not wanted:
            found: dict[int, Maybe] = {}
        else:
            results = torch.autograd.grad(
                [output for output, _ in pairs],
                wanted,
                [grad for _, grad in pairs],
                allow_unused=True,
            )
            found = {id(leaf): grad for leaf, grad in zip(wanted, results, strict=True)}
    return tuple(_gradient(leaf, value, found) for leaf, value in zip(leaves, inputs, strict=True))


def gradients_of(
    function: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    gradients: Maybe | Sequence[Maybe],
) -> tuple[Tensor, ...]:
    """`vjp` of inputs that are all floating-point tensors: each has a gradient."""
    found = vjp(function, inputs, gradients)
    return tuple(grad for grad in found if grad is not None)


def _leaf(value: Maybe) -> Maybe:
    if value is None or not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    # clone: an inference tensor can't be saved for backward, and in-place code must not reach it
    return working(value.detach().clone()).requires_grad_()


def _gradient(leaf: Maybe, value: Maybe, found: dict[int, Maybe]) -> Maybe:
    if leaf is None or value is None or not value.is_floating_point():
        return None
    grad = found.get(id(leaf))
    return torch.zeros_like(value) if grad is None else grad.detach().to(value.dtype)
