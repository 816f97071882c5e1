"""W8A8: quantise the input to int8, multiply integers exactly, scale back.

    quant_matmul(x, weight) -> y

`x` [..., K] float; `weight` an `Int8Weight` [N, K] with a scale per output, a bias, and the scale
of the input when that is static (else a scale per row of x is found: largest |x| of the row / 127).
y [..., N] in x's dtype. No gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import (
    Call,
    Implementation,
    Operator,
    OperatorCase,
    OperatorTolerance,
    rows_of,
)
from joymigrate.run.kernels.samples import Samples
from joymigrate.run.kernels.weights import Int8Weight, remember

ROWS = 128  # of the input at a time


def quantise(x: Tensor, weight: Int8Weight) -> tuple[Tensor, Tensor]:
    """Codes of x without their offset, in float, and the scale of each row [..., 1]."""
    wide = x if x.dtype is torch.float64 else x.float()
    if weight.x_scale is None:
        scale = wide.abs().amax(-1, keepdim=True) / 127
        # A row of zeros has no scale; any other than zero will do.
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return (wide / scale).round().clamp(-127, 127), scale
    scale = weight.x_scale.to(wide.dtype)
    offset = 0 if weight.x_offset is None else weight.x_offset.to(wide.dtype)
    codes = ((wide / scale).round() + offset).clamp(-128, 127) - offset
    return codes, scale.expand(*x.shape[:-1], 1)


def finish(product: Tensor, scale: Tensor, weight: Int8Weight, dtype: torch.dtype) -> Tensor:
    """Integer products as real numbers."""
    y = product * scale * weight.scale.to(product.dtype)
    if weight.bias is not None:
        y = y + weight.bias.to(product.dtype)
    return y.to(dtype)


def reference(x: Tensor, weight: Int8Weight) -> Tensor:
    """In float64, which holds every sum of int8 products exactly."""
    codes, scale = quantise(x, weight)
    product = codes.double() @ weight.values.double().T
    return finish(product, scale.double(), weight, x.dtype)


def int_mm(x: Tensor, weight: Int8Weight) -> Tensor:
    """torch's integer product."""
    codes, scale = quantise(x.reshape(-1, x.shape[-1]), weight)
    shifted = codes if weight.x_offset is None else codes.clamp(-128, 127)
    transposed = remember(weight, "transposed", lambda: weight.values.T.contiguous())
    product = torch._int_mm(shifted.to(torch.int8), transposed)
    return finish(product.float(), scale, weight, x.dtype).view(*x.shape[:-1], -1)


def onednn(x: Tensor, weight: Int8Weight) -> Tensor:
    """oneDNN's product of uint8 by int8 with the weight packed once.

    Codes are shifted by 128: with signed input oneDNN falls back to a reference a thousand times
    slower. Many rows are taken ROWS at a time: what is written between the steps stays in the
    processor's cache.
    """
    rows = x.reshape(-1, x.shape[-1])
    y = torch.empty(rows.shape[0], weight.shape[0], dtype=x.dtype)
    packed = remember(weight, "onednn", lambda: pack(weight))
    part = multiply_rowwise if weight.x_scale is None else multiply_at_once
    for first in range(0, rows.shape[0], ROWS):
        part(rows[first : first + ROWS], weight, packed, y[first : first + ROWS])
    return y.view(*x.shape[:-1], -1)


def multiply_rowwise(rows: Tensor, weight: Int8Weight, packed: PackedWeight, y: Tensor) -> None:
    """The product with a scale for each row, into y."""
    wide = rows.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-28)
    # Truncation of what is half a step too large rounds. The 127th part is in the weight's scale.
    codes = torch.add(packed.half, wide / largest, alpha=127.0).to(torch.uint8)
    product = torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, 128, packed.order, packed.scale, packed.zeros,
        None, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    if weight.bias is None:
        torch.mul(product, largest, out=product)
    else:
        torch.addcmul(weight.bias, product, largest, out=product)
    y.copy_(product)


def multiply_at_once(rows: Tensor, weight: Int8Weight, packed: PackedWeight, y: Tensor) -> None:
    """The product with one scale for all rows, into y."""
    x_scale = float(weight.x_scale)  # type: ignore[arg-type]
    zero = 128 + (0 if weight.x_offset is None else round(float(weight.x_offset)))
    codes = (rows.float() / x_scale).round_().add_(zero).clamp_(0, 255).to(torch.uint8)
    y.copy_(torch.ops.onednn.qlinear_pointwise(
        codes, x_scale, zero, packed.order, weight.scale, packed.zeros,
        weight.bias, 1.0, 0, torch.float32, "none", [], "",
    ))  # fmt: skip


class PackedWeight(NamedTuple):
    """A weight in oneDNN's order, its zero points (all zero), its scale over 127, and what rounds
    codes."""

    order: Tensor
    zeros: Tensor
    scale: Tensor
    half: Tensor


def pack(weight: Int8Weight) -> PackedWeight:
    """What oneDNN's product wants of a weight."""
    order = torch.ops.onednn.qlinear_prepack(weight.values, None)
    zeros = torch.zeros(weight.shape[0], dtype=torch.int32)
    return PackedWeight(order, zeros, weight.scale / 127, torch.tensor(128.5))


def usable_onednn(call: Call) -> str | None:
    """Something to compute, and operators that prove right."""
    return "for at least one row" if 0 in call.shape else find_fault()


@functools.cache
def find_fault() -> str | None:
    """Try the private operators once; the reason not to use them, or None."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 64, generator=generator)
    values = torch.randint(-127, 128, (32, 64), generator=generator, dtype=torch.int8)
    for x_scale in (None, torch.tensor([0.03])):
        weight = Int8Weight(values, torch.rand(32, generator=generator) * 0.01, x_scale=x_scale)
        try:
            got, want = onednn(x, weight), reference(x, weight)
        except Exception as error:  # operators of another build may be missing or refuse
            return f"oneDNN's quantised product is not usable here: {type(error).__name__}"
        if float((got - want).abs().max() / want.abs().max()) > 1e-3:
            return "oneDNN's quantised product gives wrong results here"
    return None


def usable_int_mm(call: Call) -> str | None:
    """What torch's integer product asks for."""
    rows, outputs, inputs = call.shape
    if 0 in call.shape:
        return "for at least one row"
    if call.variant.endswith("offset"):
        return "for symmetric codes"
    if inputs == 1:  # torch 2.13 takes the strides (1, 1) of one row for a column's: wrong numbers
        return "for more than one input"
    if call.device == "cuda" and (rows <= 16 or outputs % 8 or inputs % 8):
        return "on a GPU for more than 16 rows and sizes that are multiples of 8"
    return None


def describe(x: Tensor, weight: Int8Weight) -> tuple[Tensor, tuple[int, ...], str]:
    kind = "dynamic" if weight.x_scale is None else "static"
    return x, (rows_of(x), *weight.shape), kind + (" offset" if weight.x_offset is not None else "")


def weight8(
    random: Samples, n: int, k: int, *, bias: bool = False, static: bool = False
) -> Int8Weight:
    """A random weight; with `static`, an input scale and offset fit for normal inputs."""
    values = random.integers(-127, 128, n, k).to(torch.int8)
    scale = random.uniform(n, low=0.005, high=0.02).float()
    added = random.normal(n).float() if bias else None
    x_scale = torch.tensor([0.035]) if static else None
    return Int8Weight(values, scale, added, x_scale)


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, (lead, k, n) in SHAPES.items():
        yield OperatorCase(
            f"dynamic, {name}", (random.normal(*lead, k), weight8(random, n, k, bias=True))
        )
    static = weight8(random, 32, 64, bias=True, static=True)
    yield OperatorCase("static", (random.normal(6, 64), static))
    shifted = weight8(random, 32, 64, static=True)
    shifted.x_offset = torch.tensor([-20.0])
    yield OperatorCase("static with an offset", (random.normal(6, 64) + 0.7, shifted))
    rows = random.normal(4, 64)
    rows[1] = 0
    yield OperatorCase("a row of zeros", (rows, weight8(random, 16, 64)))


SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "usual": ((2, 9), 64, 96),
    "one row": ((1,), 64, 32),
    "odd": ((3,), 37, 11),
    "no rows": ((0,), 16, 8),
}


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for m in (1, 8, 32):
        for n, k in ((896, 896), (2048, 2048)):

            def build(m: int = m, n: int = n, k: int = k) -> OperatorCase:
                return OperatorCase("", (random.normal(m, k), weight8(random, n, k)))

            yield f"{m}x{k}x{n}", build


OPERATOR = Operator(
    name="quant_matmul",
    signature="quant_matmul(x, weight: Int8Weight) -> y",
    formula="y = (codes(x) - offset) valuesᵀ · x_scale · scale + bias",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    # A code may round the other way where x / scale lies within a rounding of a half: one step of
    # 254 in one of K inputs, and two-byte results on top.
    tolerance=OperatorTolerance(5e-3, 8e-3, 2e-2),
    implementations=(
        Implementation(
            "onednn", onednn, 30, devices=("cpu",), backward=False, when=usable_onednn,
            calls="onednn::qlinear_pointwise",
        ),
        Implementation(
            "torch", int_mm, 10, devices=("cpu", "cuda"), backward=False, when=usable_int_mm,
            calls="aten::_int_mm",
        ),
    ),
    differentiable=False,
    flops=lambda x, weight: 2 * rows_of(x) * weight.shape[0] * weight.shape[1],
)  # fmt: skip
