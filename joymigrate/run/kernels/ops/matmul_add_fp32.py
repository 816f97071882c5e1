"""Gradient of a weight, added to a float32 buffer without rounding the product first.

    matmul_add_fp32(x, dy, total) -> total

`x` [..., K] and `dy` [..., N] of a layer y = x Wᵀ, in any float dtype; `total` [N, K] float32,
changed in place and returned: total += dyᵀ x. `linear` is the layer whose backward does this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import (
    Float32,
    Implementation,
    Operator,
    OperatorCase,
    OperatorTolerance,
    rows_of,
)
from joymigrate.run.kernels.samples import Samples


def flat(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Both as matrices of one row a token."""
    return x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])


def reference(x: Tensor, dy: Tensor, total: Tensor) -> Tensor:
    """Both widened, then the product."""
    rows, grads = flat(x, dy)
    return total.add_(grads.to(total.dtype).T @ rows.to(total.dtype))


def add_product(x: Tensor, dy: Tensor, total: Tensor) -> Tensor:
    """One matrix product that adds: no product of its own size in memory."""
    rows, grads = flat(x, dy)
    return total.addmm_(grads.T.to(total.dtype), rows.to(total.dtype))


def narrow_inputs(x: Tensor, dy: Tensor, total: Tensor) -> Tensor:
    """The product of two-byte inputs with a float32 result, as cuBLAS has it."""
    rows, grads = flat(x, dy)
    if rows.dtype == total.dtype:
        return total.addmm_(grads.T, rows)
    return torch.addmm(total, grads.T, rows, out_dtype=torch.float32, out=total)


class Accumulating(torch.autograd.Function):
    """A linear layer whose weight gradient goes to `total` and nowhere else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.total = total
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        from joymigrate.run.kernels.registry import op

        x, weight = ctx.saved_tensors
        op("matmul_add_fp32")(x, dy.to(x.dtype), ctx.total)
        return dy @ weight, None, None


def linear(x: Tensor, weight: Tensor, total: Tensor) -> Tensor:
    """x Wᵀ [..., N]; its backward adds the weight's gradient to `total` [N, K] float32.

    The weight itself gets no gradient; give the optimiser `total`. A gradient has to reach `x`
    (true for all but a model's first layer).
    """
    found: Tensor = Accumulating.apply(x, weight, total)  # type: ignore[no-untyped-call]
    return found


def describe(x: Tensor, dy: Tensor, total: Tensor) -> tuple[Tensor, tuple[int, ...], str]:
    return x, (rows_of(x), dy.shape[-1], x.shape[-1]), ""


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, (lead, k, n) in SHAPES.items():
        total = Float32(random.normal(n, k))
        yield OperatorCase(name, (random.normal(*lead, k), random.normal(*lead, n), total))


SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "usual": ((2, 24), 32, 48),
    "odd": ((3, 7), 19, 5),
    "one token": ((1,), 16, 16),
    "no tokens": ((0,), 8, 4),
}


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for tokens, k, n in ((256, 896, 896), (1024, 896, 2432)):

        def build(t: int = tokens, k: int = k, n: int = n) -> OperatorCase:
            total = Float32(torch.zeros(n, k))
            return OperatorCase("", (random.normal(t, k), random.normal(t, n), total))

        yield f"{tokens}x{k}x{n}", build


OPERATOR = Operator(
    name="matmul_add_fp32",
    signature="matmul_add_fp32(x, dy, total) -> total",
    formula="total += dyᵀ x, in float32",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    # The result is float32 whatever the inputs are, and so is the limit.
    tolerance=OperatorTolerance(1e-5, 1e-5, 1e-5),
    implementations=(
        Implementation("torch", add_product, 10),
        Implementation("torch_out_dtype", narrow_inputs, 20, devices=("cuda",)),
        Implementation(
            "triton", "joymigrate.run.kernels.own.matmul_add_fp32:matmul_add_fp32", 5,
            devices=("cuda",), packages=("triton",), interpreted=True,
        ),
    ),
    mutates=True,
    differentiable=False,
    flops=lambda x, dy, total: 2 * rows_of(x) * dy.shape[-1] * x.shape[-1],
)  # fmt: skip
