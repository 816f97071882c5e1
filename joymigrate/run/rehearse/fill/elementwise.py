"""Elementwise operators: fmax, fmin, copysign, hypot, frexp, nextafter, lcm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import common, elementwise, fill, result_dtype

# dtype of whole numbers of the same size, bits of the fraction, bias of the exponent
LAYOUTS = {
    torch.float64: (torch.int64, 52, 1023),
    torch.float32: (torch.int32, 23, 127),
    torch.bfloat16: (torch.int16, 7, 127),
    torch.float16: (torch.int16, 10, 15),
}


def pick(a: Tensor, b: Tensor, taken: Tensor) -> Tensor:
    """`taken`, but the other operand where one of them is nan."""
    if not taken.dtype.is_floating_point:
        return taken
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, taken))


@fill("fmax fmax.out", rtol=0, atol=0)
def fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger one; a nan counts as not there."""
    a, b = common(a, b)
    return pick(a, b, torch.maximum(a, b))


@fill("fmin fmin.out", rtol=0, atol=0)
def fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller one; a nan counts as not there."""
    a, b = common(a, b)
    return pick(a, b, torch.minimum(a, b))


@fill("max.unary_out", rtol=0, atol=0)
def largest(x: Tensor) -> Tensor:
    """The largest element."""
    return torch.amax(x)


@fill("min.unary_out", rtol=0, atol=0)
def smallest(x: Tensor) -> Tensor:
    """The smallest element."""
    return torch.amin(x)


@fill("copysign.Tensor copysign_.Tensor copysign.out", rtol=0, atol=0)
def copysign(a: Tensor, b: Tensor) -> Tensor:
    """|a| with b's sign, which -0 and nan have too."""
    a, b = common(a, b)
    dtype = result_dtype(a.dtype)
    size = torch.abs(a.to(dtype))
    return torch.where(torch.signbit(b), -size, size)


@fill("hypot hypot_ hypot.out", rtol=3e-7, atol=0)
@elementwise
def hypot(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(a^2 + b^2) without overflow; inf where either one is, even beside a nan."""
    a, b = torch.abs(a), torch.abs(b)
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    ratio = low / torch.where(high == 0, 1, high)
    found = high * torch.sqrt(1 + ratio * ratio)
    return torch.where(torch.isinf(a) | torch.isinf(b), math.inf, found)


@fill("lcm lcm_ lcm.out", rtol=0, atol=0)
def lcm(a: Tensor, b: Tensor) -> Tensor:
    """The least common multiple, never negative; 0 where one is 0."""
    a, b = common(a, b)
    divisor = torch.gcd(a, b)
    whole = torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    return torch.abs(whole * b)


@fill("frexp.Tensor_out", rtol=0, atol=0)
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa in [1/2, 1) and exponent, exactly, out of the bits; inf and nan keep exponent 0."""
    whole, fraction, bias = LAYOUTS[x.dtype]
    limit = 2 * bias + 1
    bits = x.contiguous().view(whole)
    exponent = torch.bitwise_and(torch.bitwise_right_shift(bits, fraction), limit)
    below = (exponent == 0) & (x != 0)  # subnormal: bring it up first
    scaled = torch.where(below, x * 2.0**fraction, x)
    bits = scaled.contiguous().view(whole)
    exponent = torch.bitwise_and(torch.bitwise_right_shift(bits, fraction), limit)
    kept = torch.bitwise_and(bits, ~(limit << fraction))
    mantissa = torch.bitwise_or(kept, (bias - 1) << fraction).view(x.dtype)
    plain = (x != 0) & (exponent != limit)
    power = exponent - (bias - 1) - torch.where(below, fraction, 0)
    return torch.where(plain, mantissa, x), torch.where(plain, power, 0).to(torch.int32)


@fill("nextafter nextafter_ nextafter.out", rtol=0, atol=0)
def nextafter(x: Tensor, towards: Tensor) -> Tensor:
    """The next floating number after x in the direction of `towards`, out of the bits."""
    both = torch.broadcast_tensors(*common(x, towards))  # type: ignore[no-untyped-call]
    x, towards = (t.contiguous() for t in both)
    whole, _, _ = LAYOUTS[x.dtype]
    bits = x.view(whole)
    outward = (towards > x) == (x > 0)
    moved = torch.where(outward, bits + 1, bits - 1).view(x.dtype)
    tiny = torch.ones_like(bits).view(x.dtype)
    moved = torch.where(x == 0, torch.where(towards > 0, tiny, -tiny), moved)
    found = torch.where(x == towards, towards, moved)
    return torch.where(torch.isnan(x) | torch.isnan(towards), x + towards, found)
