"""The error function's relatives: erfcx, log_ndtr, ndtri."""

from __future__ import annotations

import math

import torch
from torch import Tensor, special

from joymigrate.run.rehearse.fill.declare import elementwise, fill
from joymigrate.run.rehearse.fill.fits import evaluate_fit

ROOT_2 = math.sqrt(2)


def exp_of_square(x: Tensor) -> Tensor:
    """exp(x^2) with x in two parts, the first of which has an exact square."""
    x = torch.where(torch.isinf(x), 100.0, x)
    first = torch.round(x * 16) / 16
    return torch.exp(first * first) * torch.exp((x - first) * (x + first))


@fill("special_erfcx special_erfcx.out", rtol=2e-6)
@elementwise
def erfcx(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x)."""
    positive = evaluate_fit(special.erfcx, torch.abs(x))
    found = torch.where(x < 0, 2 * exp_of_square(x.clamp(max=0)) - positive, positive)
    return torch.where(torch.isnan(x), x, found)


@fill("special_log_ndtr special_log_ndtr.out", rtol=3e-6)
@elementwise
def log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the normal distribution function."""
    low = x.clamp(max=-1)
    tail = torch.log(evaluate_fit(special.erfcx, -low / ROOT_2) / 2) - low * low / 2
    middle = torch.log1p(-torch.erfc(x.clamp(min=-1) / ROOT_2) / 2)
    found = torch.where(x < -1, tail, middle)
    return torch.where(torch.isnan(x) | (x == -math.inf), x, found)


@fill("special_ndtri special_ndtri.out", rtol=4e-6, atol=2e-6)
@elementwise
def ndtri(p: Tensor) -> Tensor:
    """The inverse of the normal distribution function; nan outside [0, 1]."""
    size = torch.minimum(p, 1 - p)
    below = evaluate_fit(special.ndtri, size, high=0.5)
    found = torch.where(p < 0.5, below, -below)
    found = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, found))
    return torch.where((p < 0) | (p > 1) | torch.isnan(p), math.nan, found)
