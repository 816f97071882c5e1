"""Fused optimiser steps: Adam, AdamW, Adam of BERT. The `.out` forms write out = [var, m, v].

The functional forms have nothing to update: the vendor's own C++ refuses them.
"""

from __future__ import annotations

from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import working

Maybe = Tensor | None
Three = tuple[Tensor, Tensor, Tensor]


def _write_back(targets: list[Tensor], *values: Tensor) -> Three:
    """Copy the new values into var, m and v, and return those."""
    var, m, v = targets
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
    return var, m, v


@reference("npu_apply_adam.out", source="op-plugin （beta）torch_npu-npu_apply_adam.md")
def npu_apply_adam_out(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    use_nesterov: bool | None,
    out: list[Tensor],
) -> Three:
    """var -= lr·√(1 - β₂ᵗ)/(1 - β₁ᵗ) · m / (√v + ε), the powers given as they are."""
    g, (var, first, second) = working(grad), map(working, out)
    first = first * beta1 + (1 - beta1) * g
    second = second * beta2 + (1 - beta2) * g * g
    rate = lr * (1 - beta2_power) ** 0.5 / (1 - beta1_power)
    step = first * beta1 + (1 - beta1) * g if use_nesterov else first
    return _write_back(out, var - rate * step / (second.sqrt() + epsilon), first, second)


@reference("npu_apply_adam_w.out", source="op-plugin ApplyAdamWKernelNpuOpApi.cpp")
def npu_apply_adam_w_out(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Maybe,
    amsgrad: bool | None,
    maximize: bool | None,
    out: list[Tensor],
) -> Three:
    """Decoupled decay, then Adam; the powers are those before this step.

    With amsgrad, `max_grad_norm` is the running maximum of v and is updated in place.
    """
    g = -working(grad) if maximize else working(grad)
    var, first, second = map(working, out)
    first = first * beta1 + (1 - beta1) * g
    second = second * beta2 + (1 - beta2) * g * g
    largest = second
    if amsgrad:
        if max_grad_norm is None:
            raise RuntimeError("if amsgrad is true, max_grad_norm must be given")
        largest = working(max_grad_norm).maximum(second)
        max_grad_norm.copy_(largest)
    denominator = (largest / (1 - beta2_power * beta2)).sqrt() + epsilon
    decayed = var * (1 - lr * weight_decay)
    moved = decayed - lr * first / (1 - beta1_power * beta1) / denominator
    return _write_back(out, moved, first, second)


@reference("npu_bert_apply_adam.out", source="op-plugin （beta）torch_npu-npu_bert_apply_adam.md")
def npu_bert_apply_adam_out(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None,
    adam_mode: int,
    out: list[Tensor],
) -> Three:
    """BertAdam: the gradient is scaled down to max_grad_norm, no bias correction, decay added."""
    if adam_mode != 0:
        raise Unsimulated("npu_bert_apply_adam", f"adam_mode {adam_mode}")
    g = working(grad)
    if max_grad_norm > 0 and global_grad_norm > max_grad_norm:
        g = g * (max_grad_norm / global_grad_norm)
    var, first, second = map(working, out)
    first = first * beta1 + (1 - beta1) * g
    second = second * beta2 + (1 - beta2) * g * g
    update = first / (second.sqrt() + epsilon) + weight_decay * var
    rate = lr if step_size is None else lr * step_size
    return _write_back(out, var - rate * update, first, second)
