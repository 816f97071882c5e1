"""How the tests compare: a reference against a formula in float64, values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs import registry

REGISTRY = registry()
# One rounding of the output, and what a float32 sum of a few dozen terms loses.
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(LIMITS)


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """A reference by its name."""
    full = name if "::" in name else f"npu::{name}"
    return REGISTRY[full].function(*args, **kwargs)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape) * 31 + len(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def near(found: Tensor, expected: Tensor, factor: float = 1.0) -> None:
    """`found` is `expected` (float64) rounded to found's dtype, within its limit."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    limit = LIMITS.get(found.dtype, 1e-9) * factor
    size = expected.abs().max().clamp(min=1.0) if expected.numel() else 1.0
    error = (found.double() - expected.double()).abs().max() if expected.numel() else 0.0
    assert error <= limit * size, f"{error} > {limit * size}"


def gradients(
    formula: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    grads: Tensor | Sequence[Tensor | None],
) -> list[Tensor]:
    """Gradients of a float64 formula."""
    leaves = [part.double().requires_grad_() for part in inputs]
    outputs = formula(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [grads] if isinstance(grads, Tensor) else list(grads)
    pairs = [(o, g.double()) for o, g in zip(outputs, wanted, strict=False) if g is not None]
    return list(torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs]))
