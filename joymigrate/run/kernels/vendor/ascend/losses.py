"""npu_cross_entropy_loss, and the linear layer fused with the loss."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from torch import Tensor

from joymigrate.run.kernels.operator import Call


def cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Tensor:
    """In float32, where a sum of losses has room. The mean is taken here: over no row it is 0."""
    kind = "sum" if reduction == "mean" else reduction
    loss: Tensor = torch_npu.npu_cross_entropy_loss(
        logits.float(), target, None, kind, ignore_index, label_smoothing
    )[0]
    if reduction == "none":
        return loss.to(logits.dtype)
    total = loss.reshape(())
    if reduction == "mean":
        total = total / (target != ignore_index).sum().clamp(min=1)
    return total.to(logits.dtype)


def when_linear(call: Call) -> str | None:
    """One number as a result, no bias, no smoothing."""
    if 0 in call.shape:
        return "for at least one element"
    return None if call.variant in ("mean", "sum") else f"not for {call.variant}"


class LinearLoss(torch.autograd.Function):
    """Row maxima and sums in the forward; the backward computes the logits again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, mean: bool
    ) -> Tensor:
        counts = target != ignore_index
        inside = target.masked_fill(~counts, 0)
        maximum, total, predicted, mask, masked, _ = torch_npu.npu_fused_linear_online_max_sum(
            hidden, weight, inside, 0, weight.shape[0] - 1
        )
        share = counts.float()
        if mean:
            share = share / counts.sum().clamp(min=1)
        ctx.save_for_backward(hidden, weight, maximum, total, mask, masked, share)
        loss: Tensor = ((total.log() - predicted) * share).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, maximum, total, mask, masked, share = ctx.saved_tensors
        dhidden, dweight = (
            torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
                share * dloss, hidden, weight, mask, masked,
                logits_max=maximum, sum_exp_logits=total,
            )
        )  # fmt: skip
        return dhidden, dweight, None, None, None


def fused_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    """The operators of a vocabulary split over ranks, with one rank."""
    args = (hidden.contiguous(), weight.contiguous(), target, ignore_index, reduction == "mean")
    found: Tensor = LinearLoss.apply(*args)  # type: ignore[no-untyped-call]
    return found
