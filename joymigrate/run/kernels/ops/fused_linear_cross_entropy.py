"""Cross entropy of a linear layer's output, without ever holding all the logits.

    fused_linear_cross_entropy(hidden, weight, target, bias=None, *, ignore_index=-100,
                               label_smoothing=0.0, reduction="mean") -> loss

`hidden` [T, H], `weight` [V, H], `target` [T], `bias` [V]. `reduction`: mean or sum. The logits of
T = 4096 and V = 150,000 would be 2.5 GB in float32; a chunk of rows at a time is a few megabytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.operator import WIDE, Implementation, Operator, OperatorCase
from joymigrate.run.kernels.ops import cross_entropy
from joymigrate.run.kernels.samples import Samples

CHUNK_ELEMENTS = 1 << 24  # logits of one chunk: 64 MB in float32


def reference(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """The layer, then cross_entropy in float32."""
    logits = F.linear(hidden, weight, bias)
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return cross_entropy.reference(
        wide,
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


class Chunked(torch.autograd.Function):
    """Loss and gradients chunk by chunk in the forward; the backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        ignore_index: int,
        smoothing: float,
        mean: bool,
    ) -> Tensor:
        needs = ctx.needs_input_grad
        wide = torch.float64 if hidden.dtype is torch.float64 else torch.float32
        counts = target != ignore_index
        share = (1.0 / counts.sum().clamp(min=1)).to(wide) if mean else None
        total = hidden.new_zeros((), dtype=wide)
        dhidden = torch.empty_like(hidden) if needs[0] else None
        dweight: Tensor | None = None
        dbias = torch.zeros_like(bias, dtype=wide) if bias is not None and needs[2] else None
        rows = max(1, CHUNK_ELEMENTS // max(1, weight.shape[0]))
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            logits = F.linear(hidden[part], weight, bias).to(wide)
            logs = logits.log_softmax(-1)
            seen = counts[part].unsqueeze(-1)
            at = target[part].masked_fill(~counts[part], 0).unsqueeze(-1)
            loss = (1 - smoothing) * logs.gather(-1, at)
            if smoothing:
                loss = loss + smoothing * logs.mean(-1, keepdim=True)
            total -= (loss * seen).sum()
            if not any(needs[:3]):
                continue
            # d/dlogits = softmax - (1 - s) onehot - s/V, for the rows that count.
            grad = logs.exp_()
            grad.scatter_add_(-1, at, torch.full_like(loss, smoothing - 1))
            if smoothing:
                grad -= smoothing / weight.shape[0]
            grad *= seen if share is None else seen * share
            narrow = grad.to(hidden.dtype)
            if dhidden is not None:
                torch.mm(narrow, weight.to(hidden.dtype), out=dhidden[part])
            if needs[1]:
                # Sums of several chunks in float32, whatever the weight's dtype is.
                product = narrow.T @ hidden[part]
                if dweight is None:
                    dweight = product if hidden.shape[0] <= rows else product.to(wide)
                else:
                    dweight += product
            if dbias is not None:
                dbias += grad.sum(0)
        if needs[1] and dweight is None:
            dweight = torch.zeros_like(weight)
        ctx.save_for_backward(dhidden, dweight, dbias)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total if share is None else total * share

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dweight, dbias = ctx.saved_tensors
        dtypes = (dloss.dtype if dhidden is None else dhidden.dtype, *ctx.dtypes)
        found = [
            None if grad is None else (grad * dloss.to(grad.dtype)).to(dtype)
            for grad, dtype in zip((dhidden, dweight, dbias), dtypes, strict=True)
        ]
        return (*found, None, None, None, None)


def run_chunked(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """`Chunked` with the operator's signature."""
    found: Tensor = Chunked.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, target, ignore_index, label_smoothing, reduction == "mean"
    )
    return found


def describe(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, label_smoothing: float, reduction: str
) -> tuple[Tensor, tuple[int, ...], str]:
    kind = (
        f"{reduction}{' smoothed' if label_smoothing else ''}{' bias' if bias is not None else ''}"
    )
    return hidden, (*hidden.shape, weight.shape[0]), kind


def one(random: Samples, rows: int, size: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """hidden, weight, target."""
    hidden, weight = random.normal(rows, size), random.normal(classes, size, scale=0.3)
    return hidden, weight, random.integers(0, classes, rows)


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, sizes in SHAPES.items():
        yield OperatorCase(name, one(random, *sizes), grad=(0, 1))
    hidden, weight, target = one(random, 20, 16, 37)
    target[::4] = -100
    yield OperatorCase("ignored targets", (hidden, weight, target), grad=(0, 1))
    yield OperatorCase("all ignored", (hidden, weight, torch.full((20,), -100)), grad=(0, 1))
    bias = random.normal(37)
    yield OperatorCase("bias", (hidden, weight, target, bias), grad=(0, 1, 3))
    yield OperatorCase("sum", (hidden, weight, target), {"reduction": "sum"}, grad=(0, 1))
    yield OperatorCase("smoothed", (hidden, weight, target), {"label_smoothing": 0.1}, grad=(0, 1))


SHAPES = {"usual": (24, 32, 64), "odd": (7, 9, 131), "one row": (1, 8, 5), "no rows": (0, 8, 5)}


def sized_case(random: Samples, sizes: tuple[int, int, int]) -> OperatorCase:
    """Random arguments of these sizes."""
    return OperatorCase("", one(random, *sizes), grad=(0, 1))


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for sizes in ((256, 512, 8192), (512, 896, 32000)):
        case = functools.partial(sized_case, random, sizes)
        yield "x".join(map(str, sizes)), case


OPERATOR = Operator(
    name="fused_linear_cross_entropy",
    signature="fused_linear_cross_entropy(hidden, weight, target, bias=None, *, "
    'ignore_index=-100, label_smoothing=0.0, reduction="mean") -> loss',
    formula="loss = cross_entropy(hidden weightᵀ + bias, target)",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation("torch", run_chunked, 10, dtypes=WIDE),
        Implementation(
            "liger", "joymigrate.run.kernels.own.liger:fused_linear_cross_entropy", 20,
            devices=("cuda", "xpu"), packages=("liger_kernel",),
            calls="LigerFusedLinearCrossEntropyFunction", interpreted=True,
        ),
    ),
    flops=lambda hidden, weight: 2 * hidden.numel() * weight.shape[0],
)  # fmt: skip
