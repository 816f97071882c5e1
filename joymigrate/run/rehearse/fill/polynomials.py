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


def chebyshev_step(k: float, x: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return 2 * x * now - before


def polynomial(x: Tensor, n: Tensor, first: Callable[[Tensor], Tensor], step: Step) -> Tensor:
    """The polynomial in the dtype of the operands."""
    (wide, order), dtype = floats(x, n)
    return recurrence(wide, order, first(wide), step).to(dtype)


def chebyshev(name: str, factor: float, offset: float, shifted: bool) -> None:
    """Declare one of the Chebyshev polynomials: p_1 = factor x + offset."""
    prefix = "special_shifted_chebyshev_polynomial_" if shifted else "special_chebyshev_polynomial_"

    @fill(f"{prefix}{name} {prefix}{name}.out", rtol=2e-5, atol=1e-5, note=WAITS)
    def declared(x: Tensor, n: Tensor) -> Tensor:
        operands, dtype = floats(x, n)
        wide = 2 * operands[0] - 1 if shifted else operands[0]
        found = recurrence(wide, operands[1], factor * wide + offset, chebyshev_step)
        return found.to(dtype)


for _shifted in (False, True):
    chebyshev("t", 1, 0, _shifted)
    chebyshev("u", 2, 0, _shifted)
    chebyshev("v", 2, -1, _shifted)
    chebyshev("w", 2, 1, _shifted)


@fill(
    "special_hermite_polynomial_h special_hermite_polynomial_h.out",
    rtol=2e-5,
    atol=1e-5,
    note=WAITS,
)
def hermite_h(x: Tensor, n: Tensor) -> Tensor:
    """The physicists' Hermite polynomial."""
    return polynomial(x, n, lambda x: 2 * x, lambda k, x, p, q: 2 * (x * p - k * q))


@fill(
    "special_hermite_polynomial_he special_hermite_polynomial_he.out",
    rtol=2e-5,
    atol=1e-5,
    note=WAITS,
)
def hermite_he(x: Tensor, n: Tensor) -> Tensor:
    """The probabilists' Hermite polynomial."""
    return polynomial(x, n, lambda x: x, lambda k, x, p, q: x * p - k * q)


@fill(
    "special_laguerre_polynomial_l special_laguerre_polynomial_l.out",
    rtol=2e-5,
    atol=1e-5,
    note=WAITS,
)
def laguerre(x: Tensor, n: Tensor) -> Tensor:
    """The Laguerre polynomial."""
    return polynomial(
        x, n, lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)
    )


@fill(
    "special_legendre_polynomial_p special_legendre_polynomial_p.out",
    rtol=2e-5,
    atol=1e-5,
    note=WAITS,
)
def legendre(x: Tensor, n: Tensor) -> Tensor:
    """The Legendre polynomial."""
    return polynomial(x, n, lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1))
