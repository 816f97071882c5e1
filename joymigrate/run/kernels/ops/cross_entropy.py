"""Cross entropy of logits.

    cross_entropy(logits, target, *, ignore_index=-100, label_smoothing=0.0, reduction="mean")

`logits` [T, V], `target` [T] of class numbers; positions of `ignore_index` count for nothing.
reduction: mean over the positions that count, sum, or none [T]. Computed in float32. A mean over
no position is 0 (torch gives NaN there, which would spoil a step of a batch of padding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.operator import WIDE, Call, Implementation, Operator, OperatorCase
from joymigrate.run.kernels.samples import Samples


def reference(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """-log softmax at the target, mixed with the mean over classes when smoothing."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    logs = wide.log_softmax(-1)
    counts = target != ignore_index
    chosen = logs.gather(-1, target.masked_fill(~counts, 0).unsqueeze(-1)).squeeze(-1)
    loss = -((1 - label_smoothing) * chosen + label_smoothing * logs.mean(-1))
    loss = loss.masked_fill(~counts, 0.0)
    if reduction == "none":
        return loss.to(logits.dtype)
    total = loss.sum()
    return (total / counts.sum().clamp(min=1) if reduction == "mean" else total).to(logits.dtype)


def run_fused(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Tensor:
    """torch.nn.functional.cross_entropy on float32 logits."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    loss = F.cross_entropy(
        wide,
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="sum" if reduction == "mean" else reduction,
    )
    if reduction == "mean":
        loss = loss / (target != ignore_index).sum().clamp(min=1)
    return loss.to(logits.dtype)


def describe(
    logits: Tensor, label_smoothing: float, reduction: str
) -> tuple[Tensor, tuple[int, ...], str]:
    return logits, tuple(logits.shape), f"{reduction}{' smoothed' if label_smoothing else ''}"


def refuse_unreduced(call: Call) -> str | None:
    """For implementations that give one number."""
    return "for mean and sum" if call.variant.startswith("none") else None


def cases(random: Samples) -> Iterator[OperatorCase]:
    for name, (rows, classes) in SHAPES.items():
        target = random.integers(0, classes, rows)
        yield OperatorCase(name, (random.normal(rows, classes, scale=3.0), target), grad=(0,))
    logits, target = random.normal(12, 40, scale=3.0), random.integers(0, 40, 12)
    target[::3] = -100
    yield OperatorCase("ignored targets", (logits, target), grad=(0,))
    yield OperatorCase("all ignored", (logits, torch.full((12,), -100)), grad=(0,))
    yield OperatorCase("other mark", (logits, target.clamp(min=0)), {"ignore_index": 0}, grad=(0,))
    yield OperatorCase("sum", (logits, target), {"reduction": "sum"}, grad=(0,))
    yield OperatorCase("none", (logits, target), {"reduction": "none"}, grad=(0,))
    yield OperatorCase("smoothed", (logits, target), {"label_smoothing": 0.1}, grad=(0,))
    yield OperatorCase("large logits", (logits * 30, target), grad=(0,))


SHAPES = {"usual": (16, 64), "odd": (7, 131), "one": (1, 5), "no rows": (0, 11)}


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for rows, classes in ((64, 32000), (256, 32000), (1024, 2048)):

        def build(r: int = rows, c: int = classes) -> OperatorCase:
            return OperatorCase("", (random.normal(r, c), random.integers(0, c, r)), grad=(0,))

        yield f"{rows}x{classes}", build


OPERATOR = Operator(
    name="cross_entropy",
    signature="cross_entropy(logits, target, *, ignore_index=-100, label_smoothing=0.0, "
    'reduction="mean") -> loss',
    formula="loss = mean over counted rows of -log softmax(logits)[target]",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation("torch", run_fused, 10, dtypes=WIDE),
        Implementation(
            "liger", "joymigrate.run.kernels.own.liger:cross_entropy", 20,
            devices=("cuda", "xpu"), packages=("liger_kernel",), when=refuse_unreduced,
            calls="LigerCrossEntropyFunction", interpreted=True,
        ),
    ),
    bytes_moved=lambda logits: logits.numel() * logits.element_size(),
)  # fmt: skip
