"""Fused optimiser steps that the chip lacks, tensor by tensor, and weight normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import fill


def found_overflow(found_inf: Tensor | None) -> bool:
    """Whether a gradient scaler found an overflow; looks at the device."""
    return found_inf is not None and bool(found_inf.item())


def prepare_gradient(grad: Tensor, grad_scale: Tensor | None, maximize: bool) -> Tensor:
    """The gradient unscaled (in place, as torch does) and in the direction to go."""
    if grad_scale is not None:
        grad.div_(grad_scale)
    return -grad if maximize else grad


@fill("_fused_adamw_.tensor_lr", rtol=1e-5, atol=1e-6)
def fused_adamw(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """AdamW with its learning rate in a tensor."""
    if found_overflow(found_inf):
        return
    for i, (weight, gradient) in enumerate(zip(weights, grads, strict=True)):
        grad = prepare_gradient(gradient, grad_scale, maximize)
        rate, step = lr.to(weight.device), state_steps[i].to(weight.device)
        average, square = exp_avgs[i], exp_avg_sqs[i]
        weight.mul_(1 - rate * weight_decay)
        average.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        seen = square
        if amsgrad:
            seen = max_exp_avg_sqs[i].copy_(torch.maximum(max_exp_avg_sqs[i], square))
        first, second = 1 - torch.pow(beta1, step), 1 - torch.pow(beta2, step)
        root = torch.sqrt(seen) / torch.sqrt(second) + eps
        weight.sub_((rate / first) * average / root)


@fill("_fused_adagrad_ _fused_adagrad_.tensor_lr", rtol=1e-5, atol=1e-6)
def fused_adagrad(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    state_sums: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: Tensor | float,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Adagrad."""
    if found_overflow(found_inf):
        return
    for i, (weight, gradient) in enumerate(zip(weights, grads, strict=True)):
        grad = prepare_gradient(gradient, grad_scale, maximize)
        if weight_decay:
            grad = grad + weight * weight_decay
        rate = lr.to(weight.device) if isinstance(lr, Tensor) else lr
        slow = rate / (1 + (state_steps[i].to(weight.device) - 1) * lr_decay)
        state_sums[i].addcmul_(grad, grad)
        weight.sub_(slow * grad / (torch.sqrt(state_sums[i]) + eps))


def others(x: Tensor, dim: int) -> list[int]:
    """All dimensions but one."""
    return [d for d in range(x.dim()) if d != dim % x.dim()]


@fill("_weight_norm_interface_backward", rtol=5e-6, atol=2e-6)
def weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """dv = g / |v| (grad - v (grad . v) / |v|^2), dg = (grad . v) / |v|."""
    full, upper = v.to(norms.dtype), grad.to(norms.dtype)
    along = (upper * full).sum(others(v, dim), keepdim=True)
    dv = g.to(norms.dtype) / norms * (upper - full * along / (norms * norms))
    return dv.to(v.dtype), (along / norms).to(g.dtype)
