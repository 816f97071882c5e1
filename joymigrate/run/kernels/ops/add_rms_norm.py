"""Residual sum and its normalisation in one go.

    add_rms_norm(x, residual, weight, eps=1e-6) -> (y, total)

`total` = x + residual, rounded to their dtype; y = rms_norm(total, weight). A gradient may arrive
at both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.operator import WIDE, Implementation, Operator, OperatorCase, rows_of
from joymigrate.run.kernels.ops import rms_norm
from joymigrate.run.kernels.samples import Samples

Two = tuple[Tensor, Tensor]


def reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> Two:
    """The sum, then the reference of rms_norm."""
    total = x + residual
    return rms_norm.reference(total, weight, eps), total


def fused_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> Two:
    """The sum, then torch's fused norm."""
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight.to(total.dtype), eps), total


def describe(
    x: Tensor, residual: Tensor, weight: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, tuple[int, ...], str]:
    return x, (rows_of(x), x.shape[-1]), ""


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, shape in rms_norm.SHAPES.items():
        weight = random.normal(shape[-1], scale=0.3) + 1
        args = (random.normal(*shape), random.normal(*shape), weight)
        yield OperatorCase(name, args, {"eps": 1e-5}, grad=(0, 1, 2))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for rows, size in rms_norm.GRID:

        def build(r: int = rows, s: int = size) -> OperatorCase:
            args = (random.normal(r, s), random.normal(r, s), random.normal(s))
            return OperatorCase("", args, grad=(0, 1, 2))

        yield f"{rows}x{size}", build


OPERATOR = Operator(
    name="add_rms_norm",
    signature="add_rms_norm(x, residual, weight, eps=1e-6) -> (y, total)",
    formula="total = x + residual; y = total / sqrt(mean(total²) + eps) · weight",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation("torch", fused_norm, 10, dtypes=WIDE, pays=rms_norm.pays_on_cpu),
        Implementation(
            "triton", "joymigrate.run.kernels.own.add_rms_norm:add_rms_norm", 20,
            devices=("cuda",), packages=("triton",), interpreted=True,
        ),
        Implementation(
            "liger", "joymigrate.run.kernels.own.liger:add_rms_norm", 15, devices=("cuda", "xpu"),
            packages=("liger_kernel",), calls="LigerFusedAddRMSNormFunction",
        ),
    ),
    bytes_moved=lambda x: 4 * x.numel() * x.element_size(),
)  # fmt: skip
