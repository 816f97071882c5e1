"""Results and gradients of an operator's call, and how far they are from the true ones.

Needs torch only: the chip-day kit takes this file along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.arguments import ReadyArguments


def outputs_of(run: Any, ready: ReadyArguments) -> list[Tensor]:
    """All results as a list."""
    found = run(*ready.args, **ready.kwargs)
    return flat(found)


def tensors_of(ready: ReadyArguments) -> list[Tensor]:
    """The arguments that are tensors."""
    return [item.detach() for item in ready.args if isinstance(item, Tensor)]


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if value is not None else []


def gradients(outputs: list[Tensor], leaves: Sequence[Tensor], seeds: list[Tensor]) -> list[Tensor]:
    """Gradients of the leaves; zeros where none arrives."""
    pairs = [(o, s.to(o.dtype)) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    if not pairs and any(output.numel() for output in outputs):
        raise RuntimeError("the result has no gradient")
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(
        [o for o, _ in pairs], leaves, [s for _, s in pairs], allow_unused=True
    )
    return [
        torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)
    ]


def difference(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest error over the results; infinite for other shapes or a NaN that isn't due."""
    if len(got) != len(want):
        raise RuntimeError(f"gave {len(got)} results instead of {len(want)}")
    return max((error_of(g, w) for g, w in zip(got, want, strict=True)), default=0.0)


def error_of(got: Tensor, want: Tensor) -> float:
    """max|got - want| / max|want|; 0 for empty tensors."""
    if got.shape != want.shape:
        raise RuntimeError(f"gave shape {tuple(got.shape)} instead of {tuple(want.shape)}")
    if want.numel() == 0:
        return 0.0
    exact, found = want.detach().double().cpu(), got.detach().cpu().double()
    error = float((found - exact).abs().max())
    if math.isnan(error):
        return math.inf
    scale = float(exact.abs().max())
    return error / scale if scale > 0 else error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
