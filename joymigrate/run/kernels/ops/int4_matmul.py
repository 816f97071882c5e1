"""W4A16: a weight of four bits with a scale per group of inputs, activations as they are.

    int4_matmul(x, weight) -> y

`x` [..., K] float; `weight` an `Int4Weight` [N, K]; y [..., N] in x's dtype. No gradient. It saves
memory. On a CPU the four-bit kernel beats the plain product of bfloat16 up to four rows; widening
the weight for a call costs more than the kernel up to about 256 (4096 x 768, one thread: 0.7 ms
against 48 at 8 rows, 21 against 26 at 256, 41 against 27 at 512).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.operator import Call, Implementation, Operator, OperatorCase, rows_of
from joymigrate.run.kernels.samples import Samples
from joymigrate.run.kernels.weights import Int4Weight, remember

FEW = 256  # rows up to which the four-bit kernel costs less than widening the weight


def reference(x: Tensor, weight: Int4Weight) -> Tensor:
    """The weight widened to float32, then the product."""
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    bias = None if weight.bias is None else weight.bias.to(wide)
    return F.linear(x.to(wide), weight.dense(wide), bias).to(x.dtype)


def multiply_widened(x: Tensor, weight: Int4Weight) -> Tensor:
    """The weight widened to x's dtype for this call, then its product."""
    bias = None if weight.bias is None else weight.bias.to(x.dtype)
    return F.linear(x, weight.dense(x.dtype), bias)


def multiply_packed(x: Tensor, weight: Int4Weight) -> Tensor:
    """torch's four-bit kernel for CPUs, the weight packed once: (code - 8) · scale + shift."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    order, both = remember(weight, f"cpu {x.dtype}", lambda: pack(weight, x.dtype))
    y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, order, weight.group, both)
    if weight.bias is not None:
        y = y + weight.bias.to(y.dtype)
    return y.view(*x.shape[:-1], weight.shape[0])


def pack(weight: Int4Weight, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The codes in the kernel's order; scales and shifts [K / group, N, 2]."""
    order = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.codes(), 1)
    scale = weight.scale.float()
    shift = (8.0 - weight.zeros()) * scale
    return order, torch.stack((scale, shift), -1).transpose(0, 1).contiguous().to(dtype)


def few_rows(call: Call) -> str | None:
    """A CPU's four-bit kernel: few rows, whole blocks, operators that prove right."""
    rows, outputs, inputs = call.shape
    group = int(call.variant.partition(" ")[2])
    if not 1 <= rows <= FEW:
        return f"for 1 to {FEW} rows"
    if outputs % 16 or inputs % 32 or group not in (32, 64, 128, 256):
        return "for outputs in multiples of 16 and groups of 32, 64, 128 or 256"
    return find_fault(call.dtype)


def narrow(call: Call) -> str | None:
    """Measured at one row of 2048²: 48 times the reference in bfloat16, 0.96 in float32."""
    return "slower than the reference in float32" if call.dtype == "float32" else None


@functools.cache
def find_fault(dtype: str) -> str | None:
    """Try the private operators once; the reason not to use them, or None."""
    x = Samples(1).normal(2, 64).to(getattr(torch, dtype))
    weight = weight4(Samples(0), 32, 64, 32)
    try:
        got, want = multiply_packed(x, weight).float(), reference(x, weight).float()
    except Exception as error:  # operators of another build may be missing or refuse
        return f"torch's four-bit kernel is not usable here: {type(error).__name__}"
    wrong = float((got - want).abs().max() / want.abs().max()) > 3e-2
    return "torch's four-bit kernel gives wrong results here" if wrong else None


def describe(x: Tensor, weight: Int4Weight) -> tuple[Tensor, tuple[int, ...], str]:
    return x, (rows_of(x), *weight.shape), f"group {weight.group}"


def weight4(
    random: Samples, n: int, k: int, group: int, *, zero: bool = False, bias: bool = False
) -> Int4Weight:
    """A random weight."""
    values = Int4Weight.pack(random.integers(0, 16, n, k))
    scale = random.uniform(n, k // group, low=0.005, high=0.02).float()
    zeros = random.integers(0, 16, n, k // group).float() if zero else None
    return Int4Weight(values, scale, zeros, random.normal(n).float() if bias else None)


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, (lead, n, k, group) in SHAPES.items():
        yield OperatorCase(name, (random.normal(*lead, k), weight4(random, n, k, group)))
    full = weight4(random, 64, 128, 64, zero=True, bias=True)
    yield OperatorCase("zero points and bias", (random.normal(2, 128), full))
    yield OperatorCase("many rows, zero points", (random.normal(9, 128), full))


SHAPES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "one row": ((1,), 64, 128, 128),
    "many rows": ((3, 7), 64, 128, 32),
    "odd": ((3,), 24, 40, 8),
    "no rows": ((0,), 32, 64, 32),
}


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for m in (1, 8, 32):

        def build(m: int = m) -> OperatorCase:
            return OperatorCase("", (random.normal(m, 2048), weight4(random, 2048, 2048, 128)))

        yield f"{m}x2048x2048 group 128", build


OPERATOR = Operator(
    name="int4_matmul",
    signature="int4_matmul(x, weight: Int4Weight) -> y",
    formula="y = x ((codes - zero) · scale)ᵀ + bias",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation(
            "packed", multiply_packed, 20, devices=("cpu",), backward=False, when=few_rows,
            pays=narrow,
            calls="aten::_weight_int4pack_mm_for_cpu",
        ),
        Implementation("torch", multiply_widened, 10, backward=False),
    ),
    differentiable=False,
    flops=lambda x, weight: 2 * rows_of(x) * weight.shape[0] * weight.shape[1],
)  # fmt: skip
