"""The input of an activation unit that compares a target with a history: both, difference, product.

    sub_mul_concat(q, k) -> y

`k` [..., L, D]; `q` [..., L, D] or broadcastable to it ([B, 1, D]: one target, L of history);
y [..., L, 4·D] = concat(q, k, q - k, q · k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import (
    POINTWISE,
    WIDE,
    Case,
    Implementation,
    Operator,
    rows_of,
)
from joymigrate.run.kernels.samples import Samples


def reference(q: Tensor, k: Tensor) -> Tensor:
    """The definition."""
    less = q - k
    return torch.cat((q.expand_as(less), k.expand_as(less), less, q * k), -1)


class Written(torch.autograd.Function):
    """Difference and product written where they belong in the result; only q and k are kept."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        less = q - k
        y = k.new_empty(*less.shape[:-1], 4 * less.shape[-1])
        parts = y.chunk(4, -1)
        parts[0].copy_(q)
        parts[1].copy_(k)
        parts[2].copy_(less)
        torch.mul(q, k, out=parts[3])
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        q, k = ctx.saved_tensors
        first, second, less, times = dy.chunk(4, -1)
        dq = torch.addcmul(first + less, times, k)
        dk = torch.addcmul(second - less, times, q)
        return dq.sum_to_size(q.shape), dk.sum_to_size(k.shape)


def written(q: Tensor, k: Tensor) -> Tensor:
    """`Written` with the operator's signature."""
    found: Tensor = Written.apply(q, k)  # type: ignore[no-untyped-call]
    return found


def describe(q: Tensor, k: Tensor) -> tuple[Tensor, tuple[int, ...], str]:
    return k, (rows_of(k), k.shape[-1]), "" if q.shape == k.shape else "broadcast"


def cases(random: Samples) -> Iterator[Case]:
    shapes = {
        "one target": ((3, 1, 16), (3, 7, 16)),
        "equal shapes": ((2, 5, 12), (2, 5, 12)),
        "odd": ((5, 1, 7), (5, 3, 7)),
        "two axes": ((4, 9), (4, 9)),
        "no history": ((2, 1, 8), (2, 0, 8)),
    }
    for name, (q, k) in shapes.items():
        yield Case(name, (random.normal(*q), random.normal(*k)), grad=(0, 1))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], Case]]]:
    for batch, length, size in ((32, 50, 32), (256, 100, 64), (16, 1000, 64)):

        def build(b: int = batch, n: int = length, d: int = size) -> Case:
            return Case("", (random.normal(b, 1, d), random.normal(b, n, d)), grad=(0, 1))

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
        Implementation("torch", written, 10, dtypes=WIDE),
        Implementation(
            "triton", "joymigrate.run.kernels.own.sub_mul_concat:sub_mul_concat", 20,
            devices=("cuda",), packages=("triton",), interpreted=True,
        ),
    ),
    bytes_moved=lambda q, k: (q.numel() + 5 * k.numel()) * k.element_size(),
)  # fmt: skip
