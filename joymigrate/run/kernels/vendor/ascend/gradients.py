"""Weight gradients added up in float32."""

from __future__ import annotations

import importlib

import torch
import torch_npu
from torch import Tensor


def matmul_add_fp32(x: Tensor, dy: Tensor, total: Tensor) -> Tensor:
    """npu_grouped_matmul_add_ with one group: total += dyᵀ x."""
    rows, grads = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    ends = torch.tensor([rows.shape[0]], dtype=torch.int64, device=x.device)
    torch_npu.npu_grouped_matmul_add_(
        total, grads.contiguous(), rows.contiguous(), ends,
        transpose_x=True, transpose_weight=False, group_type=2,
    )  # fmt: skip
    return total


def mindspeed_matmul_add_fp32(x: Tensor, dy: Tensor, total: Tensor) -> Tensor:
    """MindSpeed's extension, built on the chip's machine at run time."""
    run = importlib.import_module("mindspeed.ops.npu_matmul_add").npu_matmul_add_fp32
    rows, grads = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    run(rows, grads, total)
    return total
