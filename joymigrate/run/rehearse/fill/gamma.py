"""The gamma family: lgamma, digamma, polygamma, the Hurwitz zeta function.

lgamma(1 + z) = -log(1 + z) + z (1 - Euler) + sum (-1)^k (zeta(k) - 1) z^k / k, for |z| <= 1/2;
a recurrence leads there from below 8.5, Stirling's series holds above, the reflection formula
below 1/2. (NIST Handbook of Mathematical Functions, 5.5, 5.7, 5.11, 25.11.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import elementwise, fill, floats

EULER = 0.5772156649015329
# Bernoulli numbers B2, B4, …
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
STIRLING_FROM = 8.5
NEGATIVE_STEPS = 256


def zeta_less_one(k: int) -> float:
    """zeta(k) - 1, by the Euler-Maclaurin formula from 1/12^k on."""
    start = 12
    total: float = math.fsum(n**-k for n in range(2, start))
    total += start ** (1 - k) / (k - 1) + 0.5 * start**-k
    factor = k * start ** (-k - 1) / 2
    for order in range(1, 6):
        total += BERNOULLI[order - 1] * factor
        factor *= (k + 2 * order - 1) * (k + 2 * order)
        factor /= start**2 * (2 * order + 1) * (2 * order + 2)
    return total


SERIES = tuple((-1) ** k * zeta_less_one(k) / k for k in range(2, 30))


def about_two(z: Tensor) -> Tensor:
    """lgamma(2 + z) for |z| <= 1/2."""
    total = torch.zeros_like(z)
    for coefficient in reversed(SERIES if z.dtype == torch.float64 else SERIES[:16]):
        total = (total + coefficient) * z
    return (total + (1 - EULER)) * z


def stirling(x: Tensor) -> Tensor:
    """lgamma for x >= 8.5. The grouping keeps x log x finite as long as lgamma is."""
    inverse = 1 / x
    square = inverse * inverse
    total = torch.zeros_like(x)
    for k in range(8, 0, -1):
        total = total * square + BERNOULLI[k - 1] / (2 * k * (2 * k - 1))
    main = (x - 0.5) * (torch.log(x) - 1) + (0.5 * math.log(2 * math.pi) - 0.5)
    return torch.where(torch.isinf(x), x, main + total * inverse)


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
    near = y.clamp(max=STIRLING_FROM)
    steps = torch.round(near) - 2  # -1 for y in [0.5, 1.5)
    product = torch.ones_like(near)
    for step in range(7):
        product = product * torch.where(steps > step, near - (step + 1), 1)
    below = steps < 0
    z = torch.where(below, near - 1, near - 2 - steps.clamp(min=0))
    small = about_two(z) + torch.where(below, -torch.log1p(z.clamp(min=-0.5)), torch.log(product))
    positive = torch.where(y < STIRLING_FROM, small, stirling(y.clamp(min=STIRLING_FROM)))
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
    shifted, total = y, torch.zeros_like(y)
    for _ in range(10):
        low = shifted < 10
        total = total + torch.where(low, 1 / shifted, 0)
        shifted = torch.where(low, shifted + 1, shifted)
    square = 1 / (shifted * shifted)
    tail = torch.zeros_like(y)
    for k in range(7, 0, -1):
        tail = (tail + BERNOULLI[k - 1] / (2 * k)) * square
    positive = torch.log(shifted) - 0.5 / shifted - tail - total
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
