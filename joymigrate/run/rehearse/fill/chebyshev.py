"""Fits of special functions: Chebyshev series, made from torch's own values on the host.

The coefficients come from torch's CPU function in float64 at the Chebyshev nodes of an interval,
once per process; evaluating them takes products and sums only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


@cache
def coefficients(
    function: Callable[[Tensor], Tensor], low: float, high: float, degree: int
) -> tuple[float, ...]:
    """Chebyshev coefficients of `function` on [low, high]; trailing zeros are left out."""
    number = degree + 1
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        angle = (torch.arange(number, dtype=torch.float64, device="cpu") + 0.5) * (math.pi / number)
        nodes = torch.cos(angle)
        values = function((high - low) / 2 * nodes + (high + low) / 2)
        orders = torch.arange(number, dtype=torch.float64, device="cpu")
        terms = (torch.cos(orders[:, None] * angle[None, :]) * values).sum(1) * (2 / number)
        found = [float(term) for term in terms]
    found[0] /= 2
    largest = max(map(abs, found))
    while len(found) > 2 and abs(found[-1]) < largest * 1e-17:
        found.pop()
    return tuple(found)


def evaluate(
    function: Callable[[Tensor], Tensor], low: float, high: float, degree: int, at: Tensor
) -> Tensor:
    """The fit at `at`, by Clenshaw's recurrence; values outside are taken at the nearest end."""
    series = coefficients(function, low, high, degree)
    if at.dtype != torch.float64:  # what float32 can't see costs time and rounding
        largest = max(map(abs, series))
        series = tuple(c for c in series[:2]) + tuple(
            series[i] for i in range(2, last_seen(series, largest * 1e-9) + 1)
        )
    t = ((at.clamp(low, high) - low) * (2 / (high - low))) - 1
    later, last = torch.zeros_like(t), torch.zeros_like(t)
    for coefficient in reversed(series[1:]):
        later, last = 2 * t * later - last + coefficient, later
    return t * later - last + series[0]


def last_seen(series: tuple[float, ...], limit: float) -> int:
    """The place of the last coefficient above `limit`."""
    return max((i for i, c in enumerate(series) if abs(c) > limit), default=1)
