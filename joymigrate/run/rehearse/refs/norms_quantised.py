"""RMS norms and gated units followed by quantisation, static and dynamic."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.activations import clipped_swiglu_of
from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import torch_dtype
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.norms import rms_of
from joymigrate.run.rehearse.refs.quantise import dynamic, group_rows, quantised_as

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None


def _shift(y: Tensor, beta: Maybe) -> Tensor:
    return y if beta is None else y + working(beta)


def _scale(y: Tensor, scale: Tensor, offset: Maybe, divide: bool, dtype: torch.dtype) -> Tensor:
    scaled = y / working(scale) if divide else y * working(scale)
    return quantised_as(scaled if offset is None else scaled + working(offset), dtype)


@reference("npu_rms_norm_quant", source=DOCS.format("npu_rms_norm_quant"))
def npu_rms_norm_quant(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    scale: Tensor,
    offset: Tensor,
    epsilon: float,
    dst_dtype: int | None,
) -> Tensor:
    """round((rms norm + beta)·scale + offset)."""
    dtype = torch_dtype(dst_dtype, torch.int8, "npu_rms_norm_quant")
    y = _shift(rms_of(x, gamma.reshape(-1), epsilon)[0], beta.reshape(-1))
    return _scale(y, scale, offset, False, dtype)


@reference("npu_rms_norm_quant_v2", source="op-plugin RmsNormQuantKernelOpApiV2.cpp")
def npu_rms_norm_quant_v2(
    x: Tensor,
    gamma: Tensor,
    scale: Tensor,
    offset: Maybe,
    beta: Maybe,
    epsilon: float,
    div_mode: bool,
    dst_dtype: int | None,
) -> tuple[Tensor, Tensor]:
    """The quantised norm, and the reciprocal rms (empty: nothing here needs gradients)."""
    dtype = torch_dtype(dst_dtype, torch.int8, "npu_rms_norm_quant_v2")
    y = _shift(rms_of(x, gamma, epsilon)[0], beta)
    return _scale(y, scale, offset, div_mode, dtype), torch.empty(0)


@reference("npu_add_rms_norm_quant", source=DOCS.format("npu_add_rms_norm_quant"))
def npu_add_rms_norm_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    scales1: Tensor,
    zero_points1: Maybe,
    beta: Maybe,
    scales2: Maybe,
    zero_points2: Maybe,
    epsilon: float,
    div_mode: bool,
    dst_type: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One or two quantised norms of the sum (the second is zero without scales), and the sum."""
    dtype = torch_dtype(dst_type, torch.int8, "npu_add_rms_norm_quant")
    total = working(x1) + working(x2)
    y = _shift(rms_of(total, gamma, epsilon)[0], beta)
    first = _scale(y, scales1, zero_points1, div_mode, dtype)
    second = torch.zeros_like(first)
    if scales2 is not None:
        second = _scale(y, scales2, zero_points2, div_mode, dtype)
    return first, second, total.to(x1.dtype)


@reference("npu_add_rms_norm_dynamic_quant", source=DOCS.format("npu_add_rms_norm_dynamic_quant"))
def npu_add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    smooth_scale1: Maybe,
    smooth_scale2: Maybe,
    beta: Maybe,
    epsilon: float,
    output_mask: Sequence[bool] | None,
    y_dtype: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y1, y2, the sum, and both scales; an output that is not wanted is empty."""
    dtype = torch_dtype(y_dtype, torch.int8, "npu_add_rms_norm_dynamic_quant")
    both = smooth_scale1 is not None and smooth_scale2 is not None
    wanted = list(output_mask) if output_mask else [True, both]
    total = working(x1) + working(x2)
    y = _shift(rms_of(total, gamma, epsilon)[0], beta)
    pairs = []
    for keep, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        smoothed = y if smooth is None else y * working(smooth)
        values, scale = dynamic(smoothed, dtype, "npu_add_rms_norm_dynamic_quant")
        pairs.append((values, scale) if keep else (values.new_empty(0), scale.new_empty(0)))
    (y1, scale1), (y2, scale2) = pairs
    return y1, y2, total.to(x1.dtype), scale1, scale2


def _by_group(factor: Tensor, group_index: Maybe, rows: int, counts: bool) -> Tensor:
    """A factor [G, N], [G] or [N] for every row."""
    wide = working(factor)
    if group_index is None:
        return wide.reshape(-1) if wide.numel() > 1 else wide.reshape(())
    chosen = wide[group_rows(group_index, rows, counts)]
    return chosen if chosen.dim() == 2 else chosen.unsqueeze(-1)


def _halves(x: Tensor, activate_left: bool) -> tuple[Tensor, Tensor]:
    """(gate, linear); the right half is the gate unless told otherwise."""
    left, right = x.chunk(2, -1)
    return (left, right) if activate_left else (right, left)


@reference("npu_swiglu_quant", source=DOCS.format("npu_swiglu_quant"))
def npu_swiglu_quant(
    x: Tensor,
    smooth_scales: Maybe,
    offsets: Maybe,
    group_index: Maybe,
    activate_left: bool,
    quant_mode: int,
    group_list_type: int,
    dst_type: torch.dtype | int | None,
) -> tuple[Tensor, Tensor]:
    """swiglu, smoothed, then round(y + offset) (mode 0) or quantised by row (mode 1).

    The scale handed out is limit / max|y|, the reciprocal of npu_dynamic_quant's: the vendor's
    own test (test_npu_swiglu_quant.py) holds the chip to that.
    """
    dtype = torch_dtype(dst_type, torch.int8, "npu_swiglu_quant")
    rows = working(x).reshape(-1, x.shape[-1])
    gate, linear = _halves(rows, activate_left)
    y = F.silu(gate) * linear
    counts = group_list_type == 1
    if smooth_scales is not None:
        y = y * _by_group(smooth_scales, group_index, len(y), counts)
    if quant_mode == 1:
        values, found = dynamic(y, dtype, "npu_swiglu_quant")
        scale = torch.where(found > 0, 1.0 / found, found)
    else:
        if offsets is not None:
            y = y + _by_group(offsets, group_index, len(y), counts)
        values, scale = quantised_as(y, dtype), torch.zeros(len(y))
    return values.reshape(*x.shape[:-1], -1), scale.reshape(x.shape[:-1])


@reference("npu_dequant_swiglu_quant", source=DOCS.format("npu_dequant_swiglu_quant"))
def npu_dequant_swiglu_quant(
    x: Tensor,
    weight_scale: Maybe,
    activation_scale: Maybe,
    bias: Maybe,
    quant_scale: Maybe,
    quant_offset: Maybe,
    group_index: Maybe,
    activate_left: bool,
    quant_mode: int,
    dst_type: int | None,
    swiglu_mode: int,
    clamp_limit: float,
    glu_alpha: float,
    glu_bias: float,
) -> tuple[Tensor, Tensor]:
    """Dequantise, swiglu (1: odd and even columns, clamped; 2: halves, clamped), quantise.

    Groups are counted, not cumulative.
    """
    dtype = torch_dtype(dst_type, torch.int8, "npu_dequant_swiglu_quant")
    y = working(x if bias is None else x + bias).reshape(-1, x.shape[-1])
    if weight_scale is not None:
        y = y * _by_group(weight_scale, group_index, len(y), True)
    if activation_scale is not None:
        y = y * working(activation_scale).reshape(-1, 1)
    if swiglu_mode == 1:
        y = clipped_swiglu_of(y[:, ::2], y[:, 1::2], glu_alpha, clamp_limit, glu_bias)
    else:
        gate, linear = _halves(y, activate_left)
        if swiglu_mode == 2:
            y = clipped_swiglu_of(gate, linear, glu_alpha, clamp_limit, glu_bias)
        else:
            y = F.silu(gate) * linear
    scale = None if quant_scale is None else _by_group(quant_scale, group_index, len(y), True)
    if quant_mode == 1:
        smoothed = y if scale is None else y * scale
        values, found = dynamic(smoothed, dtype, "npu_dequant_swiglu_quant")
    else:
        divided = y if scale is None else y / scale
        if quant_offset is not None:
            divided = divided + _by_group(quant_offset, group_index, len(y), True)
        values, found = quantised_as(divided, dtype), torch.zeros(len(y))
    return values.reshape(*x.shape[:-1], -1), found.reshape(x.shape[:-1])
