"""Root mean square normalisation over the last axis.

    rms_norm(x, weight, eps=1e-6, *, offset=0.0) -> y

`x` [..., H] and `weight` [H] of one dtype (a float32 weight is fine); the mean is taken in
float32. `offset` 1.0 is the form of models that store the weight less one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.operator import (
    CPU,
    WIDE,
    Call,
    Implementation,
    Operator,
    OperatorCase,
    rows_of,
)
from joymigrate.run.kernels.samples import Samples


def reference(x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0) -> Tensor:
    """The definition, rounded once at the end."""
    wide = x if x.dtype is torch.float64 else x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * (weight.to(wide.dtype) + offset)).to(x.dtype)


def run_fused(x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0) -> Tensor:
    """torch's own, which keeps one number a row for the backward instead of x in float32."""
    # In float32 the weight plus its offset is exact enough; a narrow sum would round the weight.
    if offset:
        return (F.rms_norm(x.float(), x.shape[-1:], weight.float() + offset, eps)).to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


def pays_on_cpu(call: Call) -> str | None:
    """Measured on a CPU, where torch's is made of parts: 1.1 to 1.5 times the reference for small
    inputs, 0.92 to 1.02 from a million elements on."""
    if call.device != CPU:
        return None
    large = call.shape[0] * call.shape[1] >= 1 << 20
    return "no faster than the reference for so many elements on a CPU" if large else None


def describe(
    x: Tensor, *_: Any, offset: float = 0.0, **__: Any
) -> tuple[Tensor, tuple[int, ...], str]:
    return x, (rows_of(x), x.shape[-1]), "offset" if offset else ""


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, shape in SHAPES.items():
        args = (random.normal(*shape), random.normal(shape[-1], scale=0.3) + 1)
        yield OperatorCase(name, args, {"eps": 1e-5}, grad=(0, 1))
    args = (random.normal(6, 64), random.normal(64, scale=0.3))
    yield OperatorCase("weight less one", args, {"offset": 1.0}, grad=(0, 1))
    yield OperatorCase(
        "tiny values", (random.normal(4, 64, scale=1e-3), random.normal(64)), grad=(0, 1)
    )


SHAPES = {"usual": (2, 8, 128), "odd": (3, 5, 67), "one row": (1, 64), "no rows": (0, 64)}
GRID = ((1, 2048), (64, 896), (512, 2048), (2048, 1024), (2048, 4096))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for rows, size in GRID:
        yield (
            f"{rows}x{size}",
            lambda r=rows, s=size: OperatorCase(
                "", (random.normal(r, s), random.normal(s)), grad=(0, 1)
            ),  # type: ignore[misc]
        )


OPERATOR = Operator(
    name="rms_norm",
    signature="rms_norm(x, weight, eps=1e-6, *, offset=0.0) -> y",
    formula="y = x / sqrt(mean(x²) + eps) · (offset + weight)",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation("torch", run_fused, 10, dtypes=WIDE, pays=pays_on_cpu),
        Implementation(
            "liger",
            "joymigrate.run.kernels.own.liger:rms_norm",
            20,
            devices=("cuda", "xpu"),
            packages=("liger_kernel",),
            calls="LigerRMSNormFunction",
        ),
    ),
    bytes_moved=lambda x: 2 * x.numel() * x.element_size(),
)
