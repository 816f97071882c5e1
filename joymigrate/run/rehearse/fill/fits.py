"""Fits of special functions: a polynomial for every eighth between two powers of two.

The coefficients come from torch's own CPU function in float64 at the Chebyshev nodes of each piece,
once per process. A number's own bits name its piece, so looking up takes no search, and evaluating
takes products and sums only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

# By dtype: whole numbers of its size, bits of the mantissa behind the first three, degree of a fit.
FORMS = {torch.float32: (torch.int32, 20, 6), torch.float64: (torch.int64, 49, 13)}
Function = Callable[[Tensor], Tensor]


@cache
def pieces(function: Function, dtype: torch.dtype, low: float, high: float) -> tuple[int, Tensor]:
    """The first piece's number, and the coefficients of all on the CPU, [degree + 1, pieces]."""
    whole, shift, degree = FORMS[dtype]
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        ends = torch.tensor([low, high], dtype=dtype, device="cpu").view(whole) >> shift
        first, last = (int(end) for end in ends)
        numbers = torch.arange(first, last + 2, dtype=whole, device="cpu")
        starts = (numbers << shift).view(dtype).double()
        orders = torch.arange(degree + 1, dtype=torch.float64, device="cpu")
        nodes = torch.cos((orders + 0.5) * (math.pi / (degree + 1)))
        middle, half = (starts[1:] + starts[:-1]) / 2, (starts[1:] - starts[:-1]) / 2
        values = function(middle + half * nodes[:, None])
        found = torch.linalg.solve(nodes[:, None] ** orders, values)
        return first, found.to(dtype)


@cache
def pieces_on(
    function: Function, dtype: torch.dtype, low: float, high: float, device: torch.device
) -> tuple[int, Tensor]:
    """The same on the device of the numbers."""
    first, found = pieces(function, dtype, low, high)
    return first, found.to(device)


def evaluate_fit(function: Function, x: Tensor, low: float = 0.0, high: float = math.inf) -> Tensor:
    """`function` of x > 0, as finite as it is between `low` and `high`; values outside are taken at
    the nearest end, which is the dtype's at most."""
    whole, shift, _ = FORMS[x.dtype]
    numbers = torch.finfo(x.dtype)
    low, high = max(low, numbers.tiny), min(high, numbers.max / 8)
    first, series = pieces_on(function, x.dtype, low, high, x.device)
    inside = torch.where(torch.isnan(x), low, x).clamp(low, high)
    piece = inside.view(whole) >> shift
    start, end = (piece << shift).view(x.dtype), ((piece + 1) << shift).view(x.dtype)
    t = (inside - start) / (end - start) * 2 - 1
    place = (piece - first).long()
    found = series[-1][place]
    for row in series[:-1].flip(0):
        found = found * t + row[place]
    return torch.where(torch.isnan(x), x, found)
