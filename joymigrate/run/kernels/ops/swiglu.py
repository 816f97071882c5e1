"""The gate of SwiGLU: silu(gate) · up.

swiglu(gate, up) -> y          # two tensors of one shape
swiglu(gate_up) -> y           # one tensor [..., 2·H], the gate in the first half
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.operator import (
    POINTWISE,
    WIDE,
    Implementation,
    Operator,
    OperatorCase,
    rows_of,
)
from joymigrate.run.kernels.samples import Samples


def reference(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """The definition, as models write it."""
    if up is None:
        gate, up = gate.chunk(2, -1)
    return F.silu(gate) * up


class Recomputed(torch.autograd.Function):
    """Keeps gate and up only; the backward computes silu again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate = torch.ops.aten.silu_backward(dy * up, gate)
        return dgate, F.silu(gate).mul_(dy)


def in_place(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """The product written over silu's result: one tensor less to allocate and to write."""
    if up is None:
        gate, up = gate.chunk(2, -1)
    return F.silu(gate).mul_(up)


def run_recomputing(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """One tensor less kept for the backward, for silu computed twice."""
    if up is None:
        gate, up = gate.chunk(2, -1)
    found: Tensor = Recomputed.apply(gate, up)  # type: ignore[no-untyped-call]
    return found


def describe(gate: Tensor, up: Tensor | None = None) -> tuple[Tensor, tuple[int, ...], str]:
    if up is None:
        return gate, (rows_of(gate), gate.shape[-1] // 2), "packed"
    return gate, (rows_of(gate), gate.shape[-1]), ""


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, shape in SHAPES.items():
        yield OperatorCase(name, (random.normal(*shape), random.normal(*shape)), grad=(0, 1))
        yield OperatorCase(
            f"{name}, packed", (random.normal(*shape[:-1], 2 * shape[-1]),), grad=(0,)
        )
    wide = (random.normal(4, 32, scale=30.0), random.normal(4, 32))
    yield OperatorCase("large values", wide, grad=(0, 1))


SHAPES = {"usual": (2, 8, 96), "odd": (3, 5, 33), "one": (1, 1), "no rows": (0, 16)}
GRID = ((1, 4864), (64, 4864), (512, 4864), (1024, 8192))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for rows, size in GRID:
        yield (
            f"{rows}x{size}",
            lambda r=rows, s=size: OperatorCase(
                "", (random.normal(r, s), random.normal(r, s)), grad=(0, 1)
            ),  # type: ignore[misc]
        )


OPERATOR = Operator(
    name="swiglu",
    signature="swiglu(gate, up=None) -> y",
    formula="y = silu(gate) · up",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    tolerance=POINTWISE,
    implementations=(
        Implementation("torch", in_place, 10, dtypes=WIDE, backward=False),
        # Saves memory, not time: on request.
        Implementation("recomputed", run_recomputing, -1, dtypes=WIDE),
        Implementation(
            "liger",
            "joymigrate.run.kernels.own.liger:swiglu",
            20,
            devices=("cuda", "xpu"),
            packages=("liger_kernel",),
            calls="LigerSiLUMulFunction",
        ),
    ),
    bytes_moved=lambda gate, up=None: (
        (3 if up is not None else 1.5) * gate.numel() * gate.element_size()
    ),
)
