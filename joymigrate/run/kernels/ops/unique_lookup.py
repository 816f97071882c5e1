"""Embedding lookup that reads each row once, however often it is asked for.

    unique_lookup(weight, ids) -> rows

`weight` [V, D], `ids` of any shape; rows [*ids.shape, D]. In recommendation 65 to 85 % of the ids
of a batch repeat (Zipf), so rows and their gradients travel once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import WIDE, Implementation, Operator, OperatorCase
from joymigrate.run.kernels.samples import Samples


def reference(weight: Tensor, ids: Tensor) -> Tensor:
    """Plain indexing."""
    return weight[ids]


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """torch's embedding, whose backward adds rows without sorting them first on a CPU."""
    return torch.nn.functional.embedding(ids, weight)


class UniqueRows(torch.autograd.Function):
    """Distinct rows read once; the backward adds up per distinct id, then writes each row once."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> Tensor:
        distinct, where = torch.unique(ids, return_inverse=True)
        ctx.save_for_backward(distinct, where)
        ctx.shape = weight.shape
        return weight.index_select(0, distinct)[where]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        distinct, where = ctx.saved_tensors
        wide = torch.float32 if dy.dtype in (torch.float16, torch.bfloat16) else dy.dtype
        rows = torch.zeros(len(distinct), ctx.shape[1], dtype=wide, device=dy.device)
        rows.index_add_(0, where.reshape(-1), dy.reshape(-1, ctx.shape[1]).to(wide))
        grad = dy.new_zeros(ctx.shape)
        return grad.index_copy_(0, distinct, rows.to(dy.dtype)), None


def once(weight: Tensor, ids: Tensor) -> Tensor:
    """`Once` with the operator's signature."""
    found: Tensor = UniqueRows.apply(weight, ids)  # type: ignore[no-untyped-call]
    return found


def describe(weight: Tensor, ids: Tensor) -> tuple[Tensor, tuple[int, ...], str]:
    return weight, (ids.numel(), *weight.shape), ""


def zipf(random: Samples, rows: int, *shape: int) -> Tensor:
    """Ids in [0, rows) whose frequency falls off as 1/rank."""
    return (torch.exp(random.uniform(*shape) * torch.log(torch.tensor(rows)).double()) - 1).long()


def cases(random: Samples) -> Iterator[OperatorCase]:
    yield OperatorCase("usual", (random.normal(40, 8), zipf(random, 40, 6, 10)), grad=(0,))
    yield OperatorCase("odd", (random.normal(11, 5), random.integers(0, 11, 7)), grad=(0,))
    yield OperatorCase("all the same", (random.normal(5, 4), torch.full((9,), 3)), grad=(0,))
    yield OperatorCase("no ids", (random.normal(5, 4), torch.empty(0, dtype=torch.long)), grad=(0,))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for count, rows, size in ((4096, 100_000, 32), (65536, 100_000, 64)):

        def build(c: int = count, r: int = rows, s: int = size) -> OperatorCase:
            return OperatorCase("", (random.normal(r, s), zipf(random, r, c)), grad=(0,))

        yield f"{count} ids of {rows}x{size}", build


OPERATOR = Operator(
    name="unique_lookup",
    signature="unique_lookup(weight, ids) -> rows",
    formula="rows[i] = weight[ids[i]]",
    reference=reference,
    describe=describe,
    exact=False,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation("torch", embedding, 10, dtypes=WIDE),
        # Pays where memory is far (a table in host memory, a wide row), not on a CPU: on request
        # or by tuning.
        Implementation("unique", once, -1, dtypes=WIDE),
    ),
)
