"""Softmax with what is fused around it: scale, mask, position bias, dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.randomness import (
    keep_mask,
    next_pair,
    pack_bits,
    unpack_bits,
)

MASKED = -10000.0  # what a masked logit becomes (npu_scaled_masked_softmax)


def softmax_backward_of(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    """Gradient of the logits from the gradient of the probabilities `y`."""
    return y * (grad - (grad * y).sum(dim, keepdim=True))


def _triangle(x: Tensor, mask: Tensor, fixed_triu_mask: bool) -> Tensor:
    if not fixed_triu_mask:
        return mask.bool()
    return torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)


@reference(
    "npu_scaled_masked_softmax",
    source="op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_scaled_masked_softmax.md",
)
def npu_scaled_masked_softmax(
    x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
) -> Tensor:
    """softmax(x·scale) over the last axis, with masked logits at -10000."""
    logits = (working(x) * scale).masked_fill(_triangle(x, mask, fixed_triu_mask), MASKED)
    return logits.softmax(-1).to(x.dtype)


@reference(
    "npu_scaled_masked_softmax_backward", source="op-plugin derivatives.yaml, ScaledMaskedSoftmax"
)
def npu_scaled_masked_softmax_backward(
    y_grad: Tensor, y: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
) -> Tensor:
    grad = softmax_backward_of(working(y_grad), working(y), -1) * scale
    return grad.masked_fill(_triangle(y, mask, fixed_triu_mask), 0.0).to(y_grad.dtype)


@reference(
    "npu_masked_softmax_with_rel_pos_bias",
    source="torch_npu _op_plugin_docs.py npu_masked_softmax_with_rel_pos_bias",
)
def npu_masked_softmax_with_rel_pos_bias(
    x: Tensor, atten_mask: Tensor | None, relative_pos_bias: Tensor, scale_value: float
) -> Tensor:
    """Window attention: softmax(x·scale + mask + bias); x is [B, W, N, S1, S2] or [B·W, N, …]."""
    logits = working(x) * scale_value
    if atten_mask is not None:
        mask = working(atten_mask)
        windows = mask.reshape(-1, *mask.shape[-2:]).unsqueeze(1)  # [W, 1, S1, S2]
        shape = logits.shape
        logits = logits.reshape(-1, windows.shape[0], *shape[-3:]) + windows
        logits = logits.reshape(shape)
    bias = working(relative_pos_bias)
    return (logits + bias.reshape(bias.shape[-3:])).softmax(-1).to(x.dtype)


@reference("npu_attn_softmax_", source="op-plugin AttnSoftMaxKernelNpuOpApi.cpp")
def npu_attn_softmax_(x: Tensor) -> Tensor:
    """Softmax over the last axis, in place."""
    return x.copy_(working(x).softmax(-1))


@reference("npu_attn_softmax_backward_", source="op-plugin AttnSoftMaxBackwardKernelNpuOpApi.cpp")
def npu_attn_softmax_backward_(x: Tensor, grad_output: Tensor, values: Tensor) -> Tensor:
    """`x` holds the probabilities and becomes the gradient of the logits."""
    grad = working(grad_output) @ working(values).transpose(-2, -1)
    return x.copy_(softmax_backward_of(grad, working(x), -1))


@reference(
    "npu_dropout_with_add_softmax",
    source="op-plugin （beta）torch_npu-npu_dropout_with_add_softmax.md",
)
def npu_dropout_with_add_softmax(
    x: Tensor, x1: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed dropout mask, softmax(x·alpha + x1), and the softmax after dropout."""
    softmax = (working(x) * alpha + working(x1)).softmax(dim)
    keep = keep_mask(x.numel(), 1.0 - prob, *next_pair()).view(x.shape)
    dropped = softmax * keep / (1.0 - prob) if prob < 1 else torch.zeros_like(softmax)
    return pack_bits(keep), softmax.to(x.dtype), dropped.to(x.dtype)


@reference(
    "npu_dropout_with_add_softmax_backward", source="op-plugin DropoutWithAddSoftmaxKernelNpu.cpp"
)
def npu_dropout_with_add_softmax_backward(
    grad: Tensor, mask: Tensor, softmax_out: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of `self` and of `x1`.

    op-plugin returns the incoming gradient itself as that of `x1` (its second output); so does
    this reference, because it is what a training run on the chip sees.
    """
    keep = unpack_bits(mask, grad.numel()).view(grad.shape)
    wanted = working(grad) * keep / (1.0 - prob) if prob < 1 else torch.zeros_like(working(grad))
    logits = softmax_backward_of(wanted, working(softmax_out), dim)
    return (logits * alpha).to(softmax_out.dtype), grad
