"""The input of an activation unit that compares a target with a history: both, difference, product.

    sub_mul_concat(q, k) -> y

`k` [..., L, D]; `q` [..., L, D] or broadcastable to it ([B, 1, D]: one target, L of history);
y [..., L, 4·D] = concat(q, k, q - k, q · k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import (
    CPU,
    POINTWISE,
    WIDE,
    Call,
    Implementation,
    Operator,
    OperatorCase,
    rows_of,
)
from joymigrate.run.kernels.samples import Samples


def reference(q: Tensor, k: Tensor) -> Tensor:
    """The definition."""
    less = q - k
    return torch.cat((q.expand_as(less), k.expand_as(less), less, q * k), -1)


def write_parts(q: Tensor, k: Tensor) -> Tensor:
    """Difference and product computed where they belong in the result: no temporaries."""
    shape = torch.broadcast_shapes(q.shape, k.shape)  # type: ignore[no-untyped-call]
    y = k.new_empty(*shape[:-1], 4 * shape[-1])
    parts = y.chunk(4, -1)
    parts[0].copy_(q)
    parts[1].copy_(k)
    torch.sub(q, k, out=parts[2])
    torch.mul(q, k, out=parts[3])
    return y


def pays_on_cpu(call: Call) -> str | None:
    """Measured on a CPU: 1.1 to 1.4 times the reference for large float32 inputs, else 0.8-0.95."""
    if call.device != CPU:
        return None
    large = call.dtype in ("float32", "float64") and call.shape[0] * call.shape[1] >= 1 << 16
    return None if large else "slower than the reference for these inputs on a CPU"


def describe(q: Tensor, k: Tensor) -> tuple[Tensor, tuple[int, ...], str]:
    return k, (rows_of(k), k.shape[-1]), "" if q.shape == k.shape else "broadcast"


def cases(random: Samples) -> Iterator[OperatorCase]:
    shapes = {
        "one target": ((3, 1, 16), (3, 7, 16)),
        "equal shapes": ((2, 5, 12), (2, 5, 12)),
        "odd": ((5, 1, 7), (5, 3, 7)),
        "two axes": ((4, 9), (4, 9)),
        "no history": ((2, 1, 8), (2, 0, 8)),
    }
    for name, (q, k) in shapes.items():
        yield OperatorCase(name, (random.normal(*q), random.normal(*k)), grad=(0, 1))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for batch, length, size in ((32, 50, 32), (256, 100, 64), (16, 1000, 64)):

        def build(b: int = batch, n: int = length, d: int = size) -> OperatorCase:
            return OperatorCase("", (random.normal(b, 1, d), random.normal(b, n, d)), grad=(0, 1))

        yield f"{batch}x{length}x{size}", build


OPERATOR = Operator(
    name="sub_mul_concat",
    signature="sub_mul_concat(q, k) -> y",
    formula="y = concat(q, k, q - k, q · k)",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    tolerance=POINTWISE,
    implementations=(
        Implementation(
            "torch", write_parts, 10, dtypes=WIDE, backward=False, pays=pays_on_cpu
        ),
        Implementation(
            "triton", "joymigrate.run.kernels.own.sub_mul_concat:sub_mul_concat", 20,
            devices=("cuda",), packages=("triton",), interpreted=True,
        ),
    ),
    bytes_moved=lambda q, k: (q.numel() + 5 * k.numel()) * k.element_size(),
)  # fmt: skip
