"""Fused optimiser steps: Adam, AdamW, Adam of BERT. The `.out` forms write out = [var, m, v].

The functional forms have nothing to update: the vendor's own C++ refuses them.
"""

from __future__ import annotations

from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
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
def npu_apply_adam_out(given: ReferenceArguments) -> Three:
    """var -= lr·√(1 - β₂ᵗ)/(1 - β₁ᵗ) · m / (√v + ε), the powers given as they are."""
    g, (var, first, second) = working(given.grad), map(working, given.out)
    first = first * given.beta1 + (1 - given.beta1) * g
    second = second * given.beta2 + (1 - given.beta2) * g * g
    rate = given.lr * (1 - given.beta2_power) ** 0.5 / (1 - given.beta1_power)
    step = first * given.beta1 + (1 - given.beta1) * g if given.use_nesterov else first
    return _write_back(
        given.out, var - rate * step / (second.sqrt() + given.epsilon), first, second
    )


@reference("npu_apply_adam_w.out", source="op-plugin ApplyAdamWKernelNpuOpApi.cpp")
def npu_apply_adam_w_out(given: ReferenceArguments) -> Three:
    """Decoupled decay, then Adam; the powers are those before this step.

    With amsgrad, `max_grad_norm` is the running maximum of v and is updated in place.
    """
    g = -working(given.grad) if given.maximize else working(given.grad)
    var, first, second = map(working, given.out)
    first = first * given.beta1 + (1 - given.beta1) * g
    second = second * given.beta2 + (1 - given.beta2) * g * g
    largest = second
    if given.amsgrad:
        if given.max_grad_norm is None:
            raise RuntimeError("if amsgrad is true, max_grad_norm must be given")
        largest = working(given.max_grad_norm).maximum(second)
        given.max_grad_norm.copy_(largest)
    denominator = (largest / (1 - given.beta2_power * given.beta2)).sqrt() + given.epsilon
    decayed = var * (1 - given.lr * given.weight_decay)
    moved = decayed - given.lr * first / (1 - given.beta1_power * given.beta1) / denominator
    return _write_back(given.out, moved, first, second)


@reference("npu_bert_apply_adam.out", source="op-plugin （beta）torch_npu-npu_bert_apply_adam.md")
def npu_bert_apply_adam_out(given: ReferenceArguments) -> Three:
    """BertAdam: the gradient is scaled down to max_grad_norm, no bias correction, decay added."""
    if given.adam_mode != 0:
        raise Unsimulated("npu_bert_apply_adam", f"adam_mode {given.adam_mode}")
    g = working(given.grad)
    if given.max_grad_norm > 0 and given.global_grad_norm > given.max_grad_norm:
        g = g * (given.max_grad_norm / given.global_grad_norm)
    var, first, second = map(working, given.out)
    first = first * given.beta1 + (1 - given.beta1) * g
    second = second * given.beta2 + (1 - given.beta2) * g * g
    update = first / (second.sqrt() + given.epsilon) + given.weight_decay * var
    rate = given.lr if given.step_size is None else given.lr * given.step_size
    return _write_back(given.out, var - rate * update, first, second)
