"""Bessel functions out of fits, with the wave of large arguments taken off.

Large arguments: J_n, Y_n = sqrt(2 / (pi x)) (P cos c -+ Q sin c), c = x - (2n + 1) pi / 4, with P
and x Q smooth (NIST Handbook, 10.17).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, special

from joymigrate.run.rehearse.fill.declare import elementwise, fill
from joymigrate.run.rehearse.fill.fits import evaluate_fit

NEAR = 8.0  # where the wave is taken off
FAR = 2048.0  # from where on P and x Q do not change
GROWS = "the error of exp(|x|) grows with |x|"


@fill("special_i0e special_i0e.out", rtol=3e-6)
@elementwise
def i0e(x: Tensor) -> Tensor:
    """exp(-|x|) I0(x)."""
    return evaluate_fit(special.i0e, torch.abs(x))


@fill("i0 i0_ i0.out", rtol=1e-5, note=GROWS)
@fill("special_modified_bessel_i0 special_modified_bessel_i0.out", rtol=1e-5, note=GROWS)
@elementwise
def i0(x: Tensor) -> Tensor:
    """I0(x)."""
    size = torch.abs(x)
    return torch.where(torch.isinf(x), size, torch.exp(size) * evaluate_fit(special.i0e, size))


@fill("special_i1e special_i1e.out", rtol=3e-6)
@elementwise
def i1e(x: Tensor) -> Tensor:
    """exp(-|x|) I1(x), an odd function."""
    return torch.where(x < 0, -1.0, 1.0) * evaluate_fit(special.i1e, torch.abs(x))


@fill("special_i1 special_i1.out", rtol=1e-5, note=GROWS)
@fill("special_modified_bessel_i1 special_modified_bessel_i1.out", rtol=1e-5, note=GROWS)
@elementwise
def i1(x: Tensor) -> Tensor:
    """I1(x)."""
    size = torch.abs(x)
    found = torch.exp(size) * evaluate_fit(special.i1e, size)
    found = torch.where(torch.isinf(x), size, found)
    return torch.where(x < 0, -found, found)


KINDS = {
    ("J", 0): special.bessel_j0, ("J", 1): special.bessel_j1,
    ("Y", 0): special.bessel_y0, ("Y", 1): special.bessel_y1,
}  # fmt: skip


def amplitude(order: int, part: str, x: Tensor) -> Tensor:
    """P, or x Q."""
    angle = x - (2 * order + 1) * math.pi / 4
    j, y = KINDS["J", order](x), KINDS["Y", order](x)
    scale = torch.sqrt(math.pi * x / 2)
    found: Tensor = scale * (j * torch.cos(angle) + y * torch.sin(angle))
    if part == "Q":
        found = scale * (y * torch.cos(angle) - j * torch.sin(angle)) * x
    return found


AMPLITUDES: dict[Any, Callable[[Tensor], Tensor]] = {
    (part, order): partial(amplitude, order, part) for part in "PQ" for order in (0, 1)
}


def bessel(kind: str, order: int, x: Tensor) -> Tensor:
    """J or Y of any x > 0."""
    p = evaluate_fit(AMPLITUDES["P", order], x, NEAR, FAR)
    q = evaluate_fit(AMPLITUDES["Q", order], x, NEAR, FAR) / x
    # cos(x - a) and sin(x - a) out of cos x and sin x, which lose no digits of x
    a = (2 * order + 1) * math.pi / 4
    cosine = torch.cos(x) * math.cos(a) + torch.sin(x) * math.sin(a)
    sine = torch.sin(x) * math.cos(a) - torch.cos(x) * math.sin(a)
    wave = p * cosine - q * sine if kind == "J" else p * sine + q * cosine
    far = torch.where(torch.isinf(x), 0, math.sqrt(2 / math.pi) * wave / torch.sqrt(x))
    return torch.where(x < NEAR, evaluate_fit(KINDS[kind, order], x, high=NEAR), far)


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


def with_pole(x: Tensor, found: Tensor, pole: float) -> Tensor:
    """A function of x > 0 with its pole at zero; nan below."""
    return torch.where(x == 0, pole, torch.where(x < 0, math.nan, found))


def declare_second(order: int, name: str) -> None:
    """Declare Y0 or Y1."""

    @fill(f"{name} {name}.out", rtol=1e-5, atol=2e-6)
    @elementwise
    def declared(x: Tensor) -> Tensor:
        return with_pole(x, bessel("Y", order, x), -math.inf)


def declare_modified(scaled: Callable[[Tensor], Tensor], name: str) -> None:
    """Declare K0 or K1, and the same by exp(x)."""

    @fill(f"special_scaled_{name} special_scaled_{name}.out", rtol=1e-5)
    @elementwise
    def grown(x: Tensor) -> Tensor:
        return with_pole(x, evaluate_fit(scaled, x), math.inf)

    @fill(f"special_{name} special_{name}.out", rtol=2e-5)
    @elementwise
    def declared(x: Tensor) -> Tensor:
        return with_pole(x, evaluate_fit(scaled, x) * torch.exp(-x), math.inf)


declare_second(0, "special_bessel_y0")
declare_second(1, "special_bessel_y1")
declare_modified(special.scaled_modified_bessel_k0, "modified_bessel_k0")
declare_modified(special.scaled_modified_bessel_k1, "modified_bessel_k1")


@fill("special_spherical_bessel_j0 special_spherical_bessel_j0.out")
@elementwise
def spherical_j0(x: Tensor) -> Tensor:
    """sin(x) / x, 1 at zero, 0 at the infinities."""
    found = torch.where(x == 0, 1, torch.sin(x) / torch.where(x == 0, 1, x))
    return torch.where(torch.isinf(x), 0, found)
