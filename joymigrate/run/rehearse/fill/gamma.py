"""The gamma family: lgamma, digamma, polygamma, the Hurwitz zeta function.

Fits hold above 1/2 (lgamma) and above 0 (digamma), reflection formulas below. (NIST Handbook of
Mathematical Functions, 5.5, 5.15, 25.11.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import elementwise, fill, floats
from joymigrate.run.rehearse.fill.fits import evaluate_fit

EULER = 0.5772156649015329
# Bernoulli numbers B2, B4, …
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
NEGATIVE_STEPS = 256


def lgamma_by_x(x: Tensor) -> Tensor:
    """lgamma(x) / x, finite wherever x is."""
    return torch.lgamma(x) / x


def sine_of_pi(x: Tensor) -> Tensor:
    """sin(pi x), exact zeros at whole numbers."""
    nearest = torch.round(x)
    odd = torch.remainder(nearest, 2) == 1
    sine = torch.sin(math.pi * (x - nearest))
    return torch.where(odd, -sine, sine)


@fill("lgamma lgamma_ lgamma.out", rtol=3e-6, atol=1e-6)
@elementwise
def lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|; inf at 0, -1, -2, … and at both infinities."""
    reflect = x < 0.5
    y = torch.where(reflect, 1 - x, x)
    positive = evaluate_fit(lgamma_by_x, y, low=0.5) * y
    # log(pi / |sin|) - lgamma(1 - x); close to 0 that is lgamma(1 + x) - log |x|
    sine = torch.abs(sine_of_pi(x))
    reflected = math.log(math.pi) - torch.log(sine) - positive
    found = torch.where(reflect, reflected, positive)
    tiny = torch.abs(x) < 1e-3
    first = -torch.log(torch.abs(x)) - EULER * x + (math.pi**2 / 12) * x * x
    found = torch.where(tiny, first, found)
    found = torch.where(torch.isinf(x) | (reflect & (sine == 0)), math.inf, found)
    return torch.where(torch.isnan(x), x, found)


@fill("digamma digamma_ digamma.out", rtol=4e-6, atol=2e-6)
@elementwise
def digamma(x: Tensor) -> Tensor:
    """The derivative of log gamma; -inf at +0, inf at -0, nan at negative whole numbers."""
    reflect = x < 0
    y = torch.where(reflect, 1 - x, x)
    positive = evaluate_fit(torch.digamma, y)
    positive = torch.where(torch.isinf(y), y, positive)
    fraction = x - torch.round(x)
    whole = fraction == 0
    cotangent = math.pi / torch.tan(math.pi * torch.where(whole, 0.25, fraction))
    found = torch.where(reflect, torch.where(whole, math.nan, positive - cotangent), positive)
    found = torch.where(x == -math.inf, math.nan, found)
    return torch.where(x == 0, -1 / x, found)


def hurwitz(s: Tensor, q: Tensor) -> Tensor:
    """sum over n >= 0 of 1 / (q + n)^s: nine terms, then Euler-Maclaurin. Takes q > 0."""
    total = torch.zeros_like(q)
    for n in range(9):
        total = total + torch.pow(q + n, -s)
    a = q + 9
    power = torch.pow(a, -s)
    total = total + power * a / (s - 1) + 0.5 * power
    factor = s * power / a
    divisor = 2.0
    for order in range(1, 9):
        total = total + BERNOULLI[order - 1] / divisor * factor
        factor = factor * (s + (2 * order - 1)) * (s + 2 * order) / (a * a)
        divisor *= (2 * order + 1) * (2 * order + 2)
    return total


def climb(s: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Terms of negative q, and q moved above zero. Looks at the data: one wait for the device."""
    total = torch.zeros_like(q)
    lowest = float(torch.where(torch.isfinite(q), q, 0).min()) if q.numel() else 0.0
    for _ in range(min(NEGATIVE_STEPS, max(0, math.ceil(-lowest)))):
        low = q < 0
        base = torch.where(low, q, 1)
        odd = torch.remainder(s, 2) == 1
        term = torch.pow(torch.abs(base), -s)
        total = total + torch.where(low, torch.where(odd, -term, term), 0)
        q = torch.where(low, q + 1, q)
    return total, torch.where(q < 0, math.nan, q)


@fill(
    "special_zeta special_zeta.out",
    rtol=6e-6,
    note="negative q down to -256, with whole s, as a sum that waits for the device once",
)
@elementwise
def zeta(s: Tensor, q: Tensor) -> Tensor:
    """The Hurwitz zeta function of s and q."""
    s, q = torch.broadcast_tensors(s, q)  # type: ignore[no-untyped-call]
    total, above = climb(s, q)
    found = total + hurwitz(torch.where(s > 1, s, 2), torch.where(above == 0, 1, above))
    pole = (q <= 0) & (q == torch.floor(q))
    found = torch.where((q < 0) & (s != torch.floor(s)), math.nan, found)
    found = torch.where(pole, math.inf, found)
    return torch.where(s == 1, math.inf, torch.where((s < 1) | torch.isnan(s), math.nan, found))


@fill(
    "polygamma polygamma.out",
    rtol=8e-6,
    atol=2e-6,
    note="n >= 2 waits for the device once, to see negative inputs (down to -256)",
)
def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma."""
    if n == 0:
        first: Tensor = digamma(x)
        return first
    (wide,), dtype = floats(x)
    s = torch.full_like(wide, n + 1)
    if n == 1:
        return trigamma(wide).to(dtype)
    total, above = climb(s, wide)
    pole = (wide <= 0) & (wide == torch.floor(wide))
    found = total + hurwitz(s, torch.where(above == 0, 1, above))
    sign = 1.0 if n % 2 else -1.0
    found = torch.where(pole, math.inf, found) * (math.factorial(n) * sign)
    return found.to(dtype)


def trigamma(x: Tensor) -> Tensor:
    """The derivative of digamma, by reflection below 1/2."""
    reflect = x < 0.5
    y = torch.where(reflect, 1 - x, x)
    found = hurwitz(torch.full_like(y, 2), y)
    sine = sine_of_pi(x)
    return torch.where(reflect, math.pi**2 / (sine * sine) - found, found)
