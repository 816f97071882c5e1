"""Liger's kernels behind our operators' signatures, where liger-kernel is installed.

Its functions write gradients or results over their inputs in places; where they do, they get a
copy, so that an operator never changes what it is given.
"""

from __future__ import annotations

import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from torch import Tensor

from joymigrate.run.kernels.own.launch import apply


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, offset: float = 0.0) -> Tensor:
    """Casting mode "gemma": the product with the weight is in float32, as in our reference."""
    found: Tensor = apply(LigerRMSNormFunction, x, weight, eps, offset, "gemma", False)
    return found


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = apply(
        LigerFusedAddRMSNormFunction, x, residual, weight, eps, 0.0, "gemma", False
    )
    return found


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    if up is None:
        gate, up = gate.chunk(2, -1)
    found: Tensor = apply(LigerSiLUMulFunction, gate.contiguous(), up.contiguous())
    return found


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """x [B, N, S, D]. Liger rotates in place query and key together: it gets copies, and one head
    of zeros as the key."""
    if x.numel() == 0:
        return x * 1.0
    # With one position its kernel takes the stride of an axis of one element (0.8.5) and reads
    # wrong rows: the batch stands in for the positions.
    single = x.shape[2] == 1
    if single:
        cos, sin = (t.expand(x.shape[0], 1, 1, -1).transpose(0, 2) for t in (cos, sin))
        x = x.transpose(0, 2)
    batch, _, positions, size = x.shape
    angles = (t.reshape(-1, positions, size).contiguous() for t in (cos, sin))
    other = x.new_zeros(batch, 1, positions, size)
    found: Tensor = apply(LigerRopeFunction, x.clone(), other, *angles)[0]
    return found.transpose(0, 2) if single else found


def cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Tensor:
    """The gradient is written over the logits, so Liger gets a copy of them."""
    if logits.shape[0] == 0:
        return logits.sum()
    loss: Tensor = apply(
        LigerCrossEntropyFunction,
        logits.clone(), target, None, ignore_index, 0.0, label_smoothing, reduction,
    )[0]  # fmt: skip
    return loss.to(logits.dtype)


def fused_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Weight gradients are added up in float32."""
    if hidden.shape[0] == 0:
        return (hidden.sum() + weight.sum()) * 0
    loss: Tensor = apply(
        LigerFusedLinearCrossEntropyFunction,
        hidden, weight, target, bias, None, ignore_index, 0.0, label_smoothing, reduction,
        None, False, torch.float32,
    )[0]  # fmt: skip
    return loss
