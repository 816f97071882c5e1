"""Orthogonal polynomials by their three-term recurrences, the order being a tensor.

The largest order decides how long the recurrence runs, so each call waits for the device once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import fill, floats

WAITS = "waits for the device once, to see the largest order (at most 4096)"
LIMIT = 4096
Step = Callable[[float, Tensor, Tensor, Tensor], Tensor]


def recurrence(x: Tensor, n: Tensor, first: Tensor, step: Step) -> Tensor:
    """p_n(x) with p_0 = 1, p_1 = `first`, p_(k+1) = step(k, x, p_k, p_(k-1)); 0 for n < 0."""
    n = torch.trunc(n)
    x, n, first = torch.broadcast_tensors(x, n, first)  # type: ignore[no-untyped-call]
    finite = torch.where(torch.isfinite(n), n, 0)
    largest = min(LIMIT, int(finite.max())) if n.numel() else 0
    before, now = torch.ones_like(x), first
    found = torch.where(n == 0, before, torch.where(n == 1, now, 0))
    for k in range(1, largest):
        before, now = now, step(float(k), x, now, before)
        found = torch.where(n == k + 1, now, found)
    return torch.where((n > LIMIT) | torch.isnan(n), math.nan, found)


def chebyshev(k: float, x: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return 2 * x * now - before


# p_1, and how p_(k+1) follows from p_k (now) and p_(k-1) (before).
FAMILIES: dict[str, tuple[Callable[[Tensor], Tensor], Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * (x * p - k * q)),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_polynomial_l": (
        lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1),
    ),
}  # fmt: skip


def declare(name: str, first: Callable[[Tensor], Tensor], step: Step, shifted: bool) -> None:
    """Declare one family; a shifted one is that of 2 x - 1."""

    @fill(f"special_{name} special_{name}.out", rtol=2e-5, atol=1e-5, note=WAITS)
    def declared(x: Tensor, n: Tensor) -> Tensor:
        (wide, order), dtype = floats(x, n)
        wide = 2 * wide - 1 if shifted else wide
        return recurrence(wide, order, first(wide), step).to(dtype)


for _name, (_first, _step) in FAMILIES.items():
    declare(_name, _first, _step, shifted=False)
    if _name.startswith("chebyshev"):
        declare(f"shifted_{_name}", _first, _step, shifted=True)
