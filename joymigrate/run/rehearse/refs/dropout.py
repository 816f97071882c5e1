"""Dropout by packed masks (one bit per element) and byte masks.

The forward operators return the mask; the backward operators take it. `p` is the probability of
zero, kept elements are scaled by 1 / (1 - p).
"""

from __future__ import annotations

import math

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


def mask_out(x: Tensor, keep: Tensor, p: float) -> Tensor:
    if p >= 1:
        return torch.zeros_like(x)
    return (working(x) * keep.view(x.shape) / (1.0 - p)).to(x.dtype)


def _bits(mask: Tensor, count: int) -> Tensor:
    """A mask of either form as booleans: packed bits, or one byte per element."""
    if mask.dtype == torch.uint8 and mask.numel() == (count + 127) // 128 * 16:
        return unpack_bits(mask, count)
    return mask.reshape(-1)[:count].bool()


@reference("_npu_dropout", source="op-plugin NativeDropoutKernelNpuOpApi.cpp")
def _npu_dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    keep = keep_mask(x.numel(), 1.0 - p, *next_pair())
    return mask_out(x, keep, p), pack_bits(keep)


@reference("npu_dropout_backward", source="op-plugin NativeDropoutKernelNpuOpApi.cpp")
def npu_dropout_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    return mask_out(grad_output, _bits(mask, grad_output.numel()), p)


@reference("npu_dropout_do_mask", source="op-plugin DropoutKernelNpu.cpp")
def npu_dropout_do_mask(x: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    return mask_out(x, _bits(mask, x.numel()), p), mask


@reference("npu_dropout_gen_mask", source="op-plugin DropoutGenMaskKernelNpuOpApi.cpp")
def npu_dropout_gen_mask(size: list[int], p: float) -> Tensor:
    return pack_bits(keep_mask(math.prod(size), 1.0 - p, *next_pair()))


@reference("_npu_dropout_gen_mask.Tensor", source="op-plugin DropoutGenMaskKernelNpuOpApi.cpp")
def _npu_dropout_gen_mask(size: list[int], p: float, seed: int, offset: int) -> Tensor:
    """The mask that npu_fusion_attention makes for keep_prob 1 - p, this seed and this offset."""
    return pack_bits(keep_mask(math.prod(size), 1.0 - p, seed, offset))


@reference("_dropout_with_byte_mask", source="op-plugin DropoutWithByteMaskKernelNpu.cpp")
def _dropout_with_byte_mask(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    keep = keep_mask(x.numel(), 1.0 - p, *next_pair())
    return mask_out(x, keep, p), keep.to(torch.uint8)


@reference("_dropout_with_byte_mask_backward", source="op-plugin DropoutWithByteMaskKernelNpu.cpp")
def _dropout_with_byte_mask_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    return mask_out(grad_output, mask.reshape(-1)[: grad_output.numel()].bool(), p)


@reference("dropout_with_byte_mask", source="op-plugin DropoutWithByteMaskKernelNpu.cpp")
def dropout_with_byte_mask(x: Tensor, p: float, train: bool) -> Tensor:
    if p == 0 or not train or x.numel() == 0:
        return x
    return _dropout_with_byte_mask(x, p)[0]
