"""Bessel functions out of fits: close to zero in x, far away in 1/x with the wave taken off.

Large arguments: J_n, Y_n = sqrt(2 / (pi x)) (P cos c -+ Q sin c), c = x - (2n + 1) pi / 4, with P
and x Q smooth in 1/x^2 (NIST Handbook, 10.17). K_n and Y_n have a logarithm at zero, which is
taken off before the fit (10.8, 10.31).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, special

from joymigrate.run.rehearse.fill.chebyshev import evaluate
from joymigrate.run.rehearse.fill.declare import elementwise, fill

NEAR = 8.0  # where the fits meet
FIT = 40


def i0e_near(x: Tensor) -> Tensor:
    found: Tensor = special.i0e(x)
    return found


def i1e_near(x: Tensor) -> Tensor:
    found: Tensor = special.i1e(x) / x
    return found


def i0e_far(inverse: Tensor) -> Tensor:
    found: Tensor = special.i0e(NEAR / inverse) * torch.sqrt(NEAR / inverse)
    return found


def i1e_far(inverse: Tensor) -> Tensor:
    found: Tensor = special.i1e(NEAR / inverse) * torch.sqrt(NEAR / inverse)
    return found


def scaled_i0(x: Tensor) -> Tensor:
    """exp(-x) I0(x) for x >= 0."""
    near = evaluate(i0e_near, 0.0, NEAR, FIT, x)
    safe = x.clamp(min=NEAR)
    far = evaluate(i0e_far, 0.0, 1.0, FIT, NEAR / safe) / torch.sqrt(safe)
    return torch.where(torch.isnan(x), x, torch.where(x < NEAR, near, far))


def scaled_i1(x: Tensor) -> Tensor:
    """exp(-x) I1(x) for x >= 0."""
    near = evaluate(i1e_near, 0.0, NEAR, FIT, x) * x
    safe = x.clamp(min=NEAR)
    far = evaluate(i1e_far, 0.0, 1.0, FIT, NEAR / safe) / torch.sqrt(safe)
    return torch.where(torch.isnan(x), x, torch.where(x < NEAR, near, far))


@fill("special_i0e special_i0e.out", rtol=3e-6)
@elementwise
def i0e(x: Tensor) -> Tensor:
    """exp(-|x|) I0(x)."""
    return scaled_i0(torch.abs(x))


@fill("i0 i0_ i0.out", rtol=1e-5, note="the error of exp(|x|) grows with |x|")
@elementwise
def i0(x: Tensor) -> Tensor:
    """I0(x)."""
    size = torch.abs(x)
    return torch.where(torch.isinf(x), size, torch.exp(size) * scaled_i0(size))


@fill("special_i1e special_i1e.out", rtol=3e-6)
@elementwise
def i1e(x: Tensor) -> Tensor:
    """exp(-|x|) I1(x), an odd function."""
    return torch.where(x < 0, -1.0, 1.0) * scaled_i1(torch.abs(x))


@fill("special_i1 special_i1.out", rtol=1e-5, note="the error of exp(|x|) grows with |x|")
@elementwise
def i1(x: Tensor) -> Tensor:
    """I1(x)."""
    size = torch.abs(x)
    grown = torch.where(torch.isinf(x), size, torch.exp(size) * scaled_i1(size))
    return torch.where(x < 0, -grown, grown)


def first_kind(x: Tensor, order: int) -> Tensor:
    found: Tensor = special.bessel_j1(x) if order else special.bessel_j0(x)
    return found


def second_kind(x: Tensor, order: int) -> Tensor:
    found: Tensor = special.bessel_y1(x) if order else special.bessel_y0(x)
    return found


def j_near(order: int, square: Tensor) -> Tensor:
    """J0, or J1 / x, as a function of x^2."""
    x = torch.sqrt(square)
    return first_kind(x, order) / (x if order else 1)


def y_near(order: int, square: Tensor) -> Tensor:
    """Y without its logarithm: Y0 - 2/pi log(x) J0, (Y1 - 2/pi (log(x) J1 - 1/x)) / x."""
    x = torch.sqrt(square)
    rest = second_kind(x, order) - 2 / math.pi * torch.log(x) * first_kind(x, order)
    return (rest + 2 / (math.pi * x)) / x if order else rest


def amplitude(order: int, part: str, t: Tensor) -> Tensor:
    """P, or x Q, at x = 8 / sqrt(t)."""
    x = NEAR / torch.sqrt(t)
    angle = x - (2 * order + 1) * math.pi / 4
    j, y = first_kind(x, order), second_kind(x, order)
    scale = torch.sqrt(math.pi * x / 2)
    if part == "P":
        return scale * (j * torch.cos(angle) + y * torch.sin(angle))
    return scale * (y * torch.cos(angle) - j * torch.sin(angle)) * x


FITS: dict[Any, Callable[[Tensor], Tensor]] = {
    **{("J", n): partial(j_near, n) for n in (0, 1)},
    **{("Y", n): partial(y_near, n) for n in (0, 1)},
    **{(p, n): partial(amplitude, n, p) for n in (0, 1) for p in "PQ"},
}


def near_zero(kind: str, order: int, x: Tensor) -> Tensor:
    """J or Y below 8."""
    square = x * x
    j = evaluate(FITS["J", order], 0.0, NEAR**2, FIT, square) * (x if order else 1)
    if kind == "J":
        return j
    rest = evaluate(FITS["Y", order], 0.0, NEAR**2, FIT, square)
    log = 2 / math.pi * torch.log(x) * j
    return log - 2 / (math.pi * x) + rest * x if order else log + rest


def far_away(kind: str, order: int, x: Tensor) -> Tensor:
    """J or Y from 8 on."""
    t = (NEAR / x) * (NEAR / x)
    p = evaluate(FITS["P", order], 0.0, 1.0, FIT, t)
    q = evaluate(FITS["Q", order], 0.0, 1.0, FIT, t) / x
    # cos(x - a) and sin(x - a) out of cos x and sin x, which lose no digits of x
    a = (2 * order + 1) * math.pi / 4
    cosine = torch.cos(x) * math.cos(a) + torch.sin(x) * math.sin(a)
    sine = torch.sin(x) * math.cos(a) - torch.cos(x) * math.sin(a)
    wave = p * cosine - q * sine if kind == "J" else p * sine + q * cosine
    return torch.where(torch.isinf(x), 0, math.sqrt(2 / math.pi) * wave / torch.sqrt(x))


def bessel(kind: str, order: int, x: Tensor) -> Tensor:
    """J or Y of any x >= 0."""
    near = near_zero(kind, order, x.clamp(max=NEAR))
    found = torch.where(x < NEAR, near, far_away(kind, order, x.clamp(min=NEAR)))
    return torch.where(torch.isnan(x), x, found)


@fill("special_bessel_j0 special_bessel_j0.out", rtol=1e-5, atol=2e-6)
@elementwise
def bessel_j0(x: Tensor) -> Tensor:
    """J0(x)."""
    return bessel("J", 0, torch.abs(x))


@fill("special_bessel_j1 special_bessel_j1.out", rtol=1e-5, atol=2e-6)
@elementwise
def bessel_j1(x: Tensor) -> Tensor:
    """J1(x), an odd function."""
    found = bessel("J", 1, torch.abs(x))
    return torch.where(x < 0, -found, found)


def second(order: int, x: Tensor) -> Tensor:
    """Y of any x: -inf at zero, nan below."""
    found = bessel("Y", order, torch.where(x > 0, x, 1))
    found = torch.where(x == 0, -math.inf, torch.where(x < 0, math.nan, found))
    return torch.where(torch.isnan(x), x, found)


@fill("special_bessel_y0 special_bessel_y0.out", rtol=1e-5, atol=2e-6)
@elementwise
def bessel_y0(x: Tensor) -> Tensor:
    """Y0(x)."""
    return second(0, x)


@fill("special_bessel_y1 special_bessel_y1.out", rtol=1e-5, atol=2e-6)
@elementwise
def bessel_y1(x: Tensor) -> Tensor:
    """Y1(x)."""
    return second(1, x)


@fill("special_modified_bessel_i0 special_modified_bessel_i0.out", rtol=1e-5)
def modified_i0(x: Tensor) -> Tensor:
    """I0(x), under its other name."""
    found: Tensor = i0(x)
    return found


@fill("special_modified_bessel_i1 special_modified_bessel_i1.out", rtol=1e-5)
def modified_i1(x: Tensor) -> Tensor:
    """I1(x), under its other name."""
    found: Tensor = i1(x)
    return found


def k_near(order: int, square: Tensor) -> Tensor:
    """K without its logarithm: K0 + log(x/2) I0, (K1 - log(x/2) I1 - 1/x) / x."""
    x = torch.sqrt(square)
    log = torch.log(x / 2)
    rest: Tensor = special.modified_bessel_k0(x) + log * special.modified_bessel_i0(x)
    if order:
        rest = (special.modified_bessel_k1(x) - log * special.modified_bessel_i1(x) - 1 / x) / x
    return rest


def k_far(order: int, inverse: Tensor) -> Tensor:
    """exp(x) sqrt(x) K(x) at x = 2 / inverse."""
    x = 2 / inverse
    scaled = special.scaled_modified_bessel_k1 if order else special.scaled_modified_bessel_k0
    found: Tensor = scaled(x) * torch.sqrt(x)
    return found


K_FITS = {
    (name, n): partial(f, n) for n in (0, 1) for name, f in (("near", k_near), ("far", k_far))
}


def scaled_k(order: int, x: Tensor, scaled: bool) -> Tensor:
    """K(x), or exp(x) K(x): inf at zero, nan below."""
    low = torch.where(x > 0, x, 1).clamp(max=2)
    log = torch.log(low / 2)
    rest = evaluate(K_FITS["near", order], 0.0, 4.0, FIT, low * low)
    if order:
        near = log * torch.exp(low) * scaled_i1(low) + 1 / low + rest * low
    else:
        near = rest - log * torch.exp(low) * scaled_i0(low)
    high = x.clamp(min=2)
    far = evaluate(K_FITS["far", order], 0.0, 1.0, FIT, 2 / high) / torch.sqrt(high)
    near = near * torch.exp(low) if scaled else near
    far = far if scaled else far * torch.exp(-high)
    found = torch.where(x == 0, math.inf, torch.where(x <= 2, near, far))
    return torch.where(x < 0, math.nan, torch.where(torch.isnan(x), x, found))


@fill("special_modified_bessel_k0 special_modified_bessel_k0.out", rtol=2e-5)
@elementwise
def modified_k0(x: Tensor) -> Tensor:
    """K0(x)."""
    return scaled_k(0, x, scaled=False)


@fill("special_modified_bessel_k1 special_modified_bessel_k1.out", rtol=2e-5)
@elementwise
def modified_k1(x: Tensor) -> Tensor:
    """K1(x)."""
    return scaled_k(1, x, scaled=False)


@fill("special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k0.out", rtol=1e-5)
@elementwise
def scaled_k0(x: Tensor) -> Tensor:
    """exp(x) K0(x)."""
    return scaled_k(0, x, scaled=True)


@fill("special_scaled_modified_bessel_k1 special_scaled_modified_bessel_k1.out", rtol=1e-5)
@elementwise
def scaled_k1(x: Tensor) -> Tensor:
    """exp(x) K1(x)."""
    return scaled_k(1, x, scaled=True)


@fill("special_spherical_bessel_j0 special_spherical_bessel_j0.out")
@elementwise
def spherical_j0(x: Tensor) -> Tensor:
    """sin(x) / x, 1 at zero, 0 at the infinities."""
    small = torch.abs(x) < 0.5
    square = torch.where(small, x * x, 0)
    series = 1 + square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square / 362880)))
    far = torch.sin(x) / torch.where(small, 1, x)
    return torch.where(torch.isinf(x), 0, torch.where(small, series, far))
