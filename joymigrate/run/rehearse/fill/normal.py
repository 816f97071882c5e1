"""The error function's relatives: erfcx, log_ndtr, ndtri; entr and xlog1py.

erfcx is a fit in 4 / (4 + x), which is smooth down to x = infinity. ndtri comes from erfinv in the
middle and, below p = 0.1, from a fit in 1 / sqrt(-2 log p).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, special

from joymigrate.run.rehearse.fill.chebyshev import evaluate
from joymigrate.run.rehearse.fill.declare import elementwise, fill

ROOT_2 = math.sqrt(2)
TAIL = 0.1
TAIL_U = 1 / math.sqrt(-2 * math.log(TAIL))
SMALLEST_U = 1 / 38.6  # 1 / sqrt(-2 log p) at float64's smallest p


def erfcx_fit(t: Tensor) -> Tensor:
    found: Tensor = special.erfcx(4 / t - 4) / t
    return found


def tail_fit(u: Tensor) -> Tensor:
    """-ndtri(exp(-1 / (2 u^2))) u, by Newton's method on log_ndtr, where p itself underflows."""
    wanted = -0.5 / (u * u)
    x = -1 / u
    for _ in range(60):
        value = special.log_ndtr(x)
        slope = torch.exp(-x * x / 2 - value) / math.sqrt(2 * math.pi)
        x = x - (value - wanted) / slope
    return -x * u


def erfcx_positive(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x) for x >= 0."""
    t = 4 / (4 + x)
    return evaluate(erfcx_fit, 0.0, 1.0, 60, t) * t


def exp_of_square(x: Tensor) -> Tensor:
    """exp(x^2) with x in two parts, the first of which has an exact square."""
    x = torch.where(torch.isinf(x), 100.0, x)
    first = torch.round(x * 16) / 16
    return torch.exp(first * first) * torch.exp((x - first) * (x + first))


@fill("special_erfcx special_erfcx.out", rtol=2e-6)
@elementwise
def erfcx(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x)."""
    positive = erfcx_positive(torch.abs(x))
    found = torch.where(x < 0, 2 * exp_of_square(x.clamp(max=0)) - positive, positive)
    return torch.where(torch.isnan(x), x, found)


@fill("special_log_ndtr special_log_ndtr.out", rtol=3e-6)
@elementwise
def log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the normal distribution function."""
    low = x.clamp(max=-1)
    tail = torch.log(erfcx_positive(-low / ROOT_2) / 2) - low * low / 2
    middle = torch.log1p(-torch.erfc(x.clamp(min=-1) / ROOT_2) / 2)
    found = torch.where(x < -1, tail, middle)
    return torch.where(torch.isnan(x) | (x == -math.inf), x, found)


@fill("special_ndtri special_ndtri.out", rtol=4e-6, atol=2e-6)
@elementwise
def ndtri(p: Tensor) -> Tensor:
    """The inverse of the normal distribution function; nan outside [0, 1]."""
    size = torch.minimum(p, 1 - p)
    u = torch.rsqrt(-2 * torch.log(torch.where(size > 0, size.clamp(max=TAIL), TAIL)))
    tail = evaluate(tail_fit, SMALLEST_U, TAIL_U + 1e-3, 50, u) / u
    middle = ROOT_2 * torch.erfinv(2 * p - 1)
    found = torch.where(size < TAIL, torch.where(p < 0.5, -tail, tail), middle)
    found = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, found))
    return torch.where((p < 0) | (p > 1) | torch.isnan(p), math.nan, found)


@fill("special_entr special_entr.out")
@elementwise
def entr(x: Tensor) -> Tensor:
    """-x log x; 0 at 0, -inf below."""
    inside = x > 0
    found = torch.where(inside, -x * torch.log(torch.where(inside, x, 1)), -math.inf)
    return torch.where(torch.isnan(x), x, torch.where(x == 0, 0, found))


@fill("special_xlog1py special_xlog1py.out")
@elementwise
def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    """x log(1 + y); 0 where x is 0 and y is a number."""
    found = torch.where(x == 0, 0, x * torch.log1p(y))
    return torch.where(torch.isnan(y), y, found)
