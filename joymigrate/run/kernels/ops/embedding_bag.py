"""Rows of a table pooled by bag, with a backward that stays on the device.

    embedding_bag(weight, indices, offsets, per_sample_weights=None, *, mode="sum") -> pooled

`weight` [V, D], `indices` [T], `offsets` [B + 1] (bag b is indices[offsets[b]:offsets[b + 1]]),
`per_sample_weights` [T] for mode sum; `mode` sum, mean or max; pooled [B, D], zero for empty bags.

torch's own backward (`_embedding_bag_backward`) has no kernel on some chips: there the whole
gradient crosses to the host in every step. `segments` builds it from gathers and `index_add`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import CPU, WIDE, Call, Implementation, Operator, OperatorCase
from joymigrate.run.kernels.samples import Samples

MODES = ("sum", "mean", "max")


def reference(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: str = "sum",
) -> Tensor:
    """Bag by bag."""
    edges: list[int] = offsets.tolist()
    bags = []
    for start, stop in pairwise(edges):
        rows = weight[indices[start:stop]]
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[start:stop, None]
        if start == stop:
            bags.append(weight.new_zeros(weight.shape[1]) + 0 * weight.sum())
        elif mode == "max":
            bags.append(rows.max(0).values)
        else:
            bags.append(rows.mean(0) if mode == "mean" else rows.sum(0))
    return torch.stack(bags) if bags else weight.new_empty(0, weight.shape[1])


def run_fused(
    weight: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, mode: str
) -> Tensor:
    """torch's embedding_bag."""
    pooled = torch.nn.functional.embedding_bag(
        indices, weight, close_offsets(offsets, indices).to(indices.dtype), mode=mode,
        per_sample_weights=per_sample_weights, include_last_offset=True,
    )  # fmt: skip
    return pooled[:-1]


def close_offsets(offsets: Tensor, indices: Tensor) -> Tensor:
    """Offsets with one more bag, [B + 2], for the indices behind the last offset.

    torch's kernels count those to the last bag, though its documentation ends the bag there.
    """
    return torch.cat((offsets, offsets.new_full((1,), indices.numel())))


def bags_of(offsets: Tensor, total: int) -> Tensor:
    """The bag of each index, [T]: how many bags have ended before it."""
    ends = offsets.new_zeros(total + 1, dtype=torch.int64)
    inner = offsets[1:-1].to(torch.int64)
    ended: Tensor = ends.index_add_(0, inner, torch.ones_like(inner)).cumsum(0)
    return ended[:total]


class SegmentBag(torch.autograd.Function):
    """torch's forward; a backward of gathers and one sum into rows."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, indices: Tensor, offsets: Tensor, scale: Tensor | None, mode: str
    ) -> Tensor:
        found = torch.ops.aten._embedding_bag(
            weight, indices, offsets.to(indices.dtype), False, MODES.index(mode), False, scale, True
        )
        pooled: Tensor = found[0].to(weight.dtype)
        ctx.mode, ctx.shape = mode, weight.shape
        kept = weight if scale is not None and scale.requires_grad else None
        ctx.save_for_backward(indices, offsets, scale, kept, found[3] if mode == "max" else None)
        return pooled

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, Tensor | None, None]:
        indices, offsets, scale, kept, chosen = ctx.saved_tensors
        dy = dy.contiguous()
        if ctx.mode == "max":
            return of_largest(dy, offsets, chosen, ctx.shape), None, None, None, None
        if not dy.shape[0]:
            return dy.new_zeros(ctx.shape), None, None, None, None
        bags = bags_of(offsets, indices.numel())
        if ctx.mode == "mean":
            dy = dy / offsets.diff().clamp(min=1).to(dy.dtype)[:, None]
        wide = torch.promote_types(torch.float32, dy.dtype)
        rows = dy.index_select(0, bags).to(wide)
        back = None
        if kept is not None:
            back = (kept.index_select(0, indices).to(wide) * rows).sum(1).to(scale.dtype)
        if scale is not None:
            rows = rows * scale[:, None]
        grad = dy.new_zeros(ctx.shape, dtype=wide).index_add_(0, indices.long(), rows)
        return grad.to(dy.dtype), None, None, back, None


def of_largest(dy: Tensor, offsets: Tensor, chosen: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of each element goes to the row it was taken from."""
    if not dy.numel():
        return dy.new_zeros(shape)
    there = (offsets.diff() > 0)[:, None]
    columns = torch.arange(shape[1], device=dy.device)
    flat = chosen.clamp(min=0).long() * shape[1] + columns
    wide = torch.promote_types(torch.float32, dy.dtype)
    grad = dy.new_zeros(shape[0] * shape[1], dtype=wide)
    grad.index_add_(0, flat.reshape(-1), torch.where(there, dy.to(wide), 0).reshape(-1))
    return grad.view(shape).to(dy.dtype)


def segments(
    weight: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, mode: str
) -> Tensor:
    """`SegmentBag` with the operator's signature."""
    found: Tensor = SegmentBag.apply(  # type: ignore[no-untyped-call]
        weight, indices, close_offsets(offsets, indices), per_sample_weights, mode
    )
    return found[:-1]


def has_backward(call: Call) -> str | None:
    """torch's backward runs on CPUs and CUDA; elsewhere it is a fallback at best."""
    if call.grad and call.device not in (CPU, "cuda"):
        return "its backward leaves the device"
    return None


def describe(
    weight: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, mode: str
) -> tuple[Tensor, tuple[int, ...], str]:
    variant = mode if per_sample_weights is None else f"{mode} weighted"
    return weight, (indices.numel(), offsets.numel() - 1, weight.shape[1]), variant


LENGTHS = {
    "usual": (3, 1, 4),
    "empty bags": (0, 2, 0, 0, 3, 0),
    "one bag": (5,),
    "no ids": (0, 0),
    "no bags": (),
}


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, lengths in LENGTHS.items():
        for mode in MODES:
            indices = random.integers(0, 12, sum(lengths))
            offsets = torch.tensor((0, *lengths)).cumsum(0)
            keywords = {"mode": mode}
            yield OperatorCase(
                f"{name}, {mode}", (random.normal(12, 6), indices, offsets), keywords, (0,)
            )
    same, offsets = torch.full((7,), 3), torch.tensor([0, 4, 7])
    yield OperatorCase("one id, sum", (random.normal(5, 4), same, offsets), grad=(0,))
    weighted = random.normal(11, 7), random.integers(0, 11, 7), offsets, random.normal(7)
    yield OperatorCase("weighted, odd", weighted, grad=(0, 3))
    short = torch.tensor([0, 2, 5])
    for mode in MODES:
        given = random.normal(11, 7), random.integers(0, 11, 7), short
        yield OperatorCase(f"ids behind the last offset, {mode}", given, {"mode": mode}, (0,))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for bags, each, rows, size in ((2048, 2, 100_000, 32), (4096, 20, 100_000, 64)):

        def build(b: int = bags, n: int = each, r: int = rows, s: int = size) -> OperatorCase:
            offsets = torch.arange(0, b * n + 1, n)
            return OperatorCase(
                "", (random.normal(r, s), random.integers(0, r, b * n), offsets), grad=(0,)
            )

        yield f"{bags} bags of {each} from {rows}x{size}", build


OPERATOR = Operator(
    name="embedding_bag",
    signature="embedding_bag(weight, indices, offsets, per_sample_weights=None, *, mode='sum') "
    "-> pooled",
    formula="pooled[b] = sum, mean or max over the bag of weight[indices[i]] · weights[i]",
    reference=reference,
    describe=describe,
    exact=False,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation("torch", run_fused, 20, dtypes=WIDE, when=has_backward),
        Implementation("segments", segments, 10, dtypes=WIDE),
        Implementation(
            "triton", "joymigrate.run.kernels.own.embedding_bag:embedding_bag", 30,
            devices=("cuda",), packages=("triton",), interpreted=True,
            when="joymigrate.run.kernels.own.embedding_bag:when",
        ),
    ),
)  # fmt: skip
