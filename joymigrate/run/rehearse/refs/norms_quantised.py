"""RMS norms and gated units followed by quantisation, static and dynamic."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.activations import clipped_swiglu_of
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
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
def npu_rms_norm_quant_v2(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """The quantised norm, and the reciprocal rms (empty: nothing here needs gradients)."""
    dtype = torch_dtype(given.dst_dtype, torch.int8, "npu_rms_norm_quant_v2")
    y = _shift(rms_of(given.x, given.gamma, given.epsilon)[0], given.beta)
    return _scale(y, given.scale, given.offset, given.div_mode, dtype), torch.empty(0)


@reference("npu_add_rms_norm_quant", source=DOCS.format("npu_add_rms_norm_quant"))
def npu_add_rms_norm_quant(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    """One or two quantised norms of the sum (the second is zero without scales), and the sum."""
    dtype = torch_dtype(given.dst_type, torch.int8, "npu_add_rms_norm_quant")
    total = working(given.x1) + working(given.x2)
    y = _shift(rms_of(total, given.gamma, given.epsilon)[0], given.beta)
    first = _scale(y, given.scales1, given.zero_points1, given.div_mode, dtype)
    second = torch.zeros_like(first)
    if given.scales2 is not None:
        second = _scale(y, given.scales2, given.zero_points2, given.div_mode, dtype)
    return first, second, total.to(given.x1.dtype)


@reference("npu_add_rms_norm_dynamic_quant", source=DOCS.format("npu_add_rms_norm_dynamic_quant"))
def npu_add_rms_norm_dynamic_quant(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y1, y2, the sum, and both scales; an output that is not wanted is empty."""
    dtype = torch_dtype(given.y_dtype, torch.int8, "npu_add_rms_norm_dynamic_quant")
    both = given.smooth_scale1 is not None and given.smooth_scale2 is not None
    wanted = list(given.output_mask) if given.output_mask else [True, both]
    total = working(given.x1) + working(given.x2)
    y = _shift(rms_of(total, given.gamma, given.epsilon)[0], given.beta)
    pairs = []
    for keep, smooth in zip(wanted, (given.smooth_scale1, given.smooth_scale2), strict=True):
        smoothed = y if smooth is None else y * working(smooth)
        values, scale = dynamic(smoothed, dtype, "npu_add_rms_norm_dynamic_quant")
        pairs.append((values, scale) if keep else (values.new_empty(0), scale.new_empty(0)))
    (y1, scale1), (y2, scale2) = pairs
    return y1, y2, total.to(given.x1.dtype), scale1, scale2


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
def npu_swiglu_quant(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """swiglu, smoothed, then round(y + offset) (mode 0) or quantised by row (mode 1).

    The scale handed out is limit / max|y|, the reciprocal of npu_dynamic_quant's: the vendor's
    own test (test_npu_swiglu_quant.py) holds the chip to that.
    """
    dtype = torch_dtype(given.dst_type, torch.int8, "npu_swiglu_quant")
    rows = working(given.x).reshape(-1, given.x.shape[-1])
    gate, linear = _halves(rows, given.activate_left)
    y = F.silu(gate) * linear
    counts = given.group_list_type == 1
    if given.smooth_scales is not None:
        y = y * _by_group(given.smooth_scales, given.group_index, len(y), counts)
    if given.quant_mode == 1:
        values, found = dynamic(y, dtype, "npu_swiglu_quant")
        scale = torch.where(found > 0, 1.0 / found, found)
    else:
        if given.offsets is not None:
            y = y + _by_group(given.offsets, given.group_index, len(y), counts)
        values, scale = quantised_as(y, dtype), torch.zeros(len(y))
    return values.reshape(*given.x.shape[:-1], -1), scale.reshape(given.x.shape[:-1])


@reference("npu_dequant_swiglu_quant", source=DOCS.format("npu_dequant_swiglu_quant"))
def npu_dequant_swiglu_quant(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Dequantise, swiglu (1: odd and even columns, clamped; 2: halves, clamped), quantise.

    Groups are counted, not cumulative.
    """
    dtype = torch_dtype(given.dst_type, torch.int8, "npu_dequant_swiglu_quant")
    y = working(given.x if given.bias is None else given.x + given.bias).reshape(
        -1, given.x.shape[-1]
    )
    if given.weight_scale is not None:
        y = y * _by_group(given.weight_scale, given.group_index, len(y), True)
    if given.activation_scale is not None:
        y = y * working(given.activation_scale).reshape(-1, 1)
    if given.swiglu_mode == 1:
        y = clipped_swiglu_of(
            y[:, ::2], y[:, 1::2], given.glu_alpha, given.clamp_limit, given.glu_bias
        )
    else:
        gate, linear = _halves(y, given.activate_left)
        if given.swiglu_mode == 2:
            y = clipped_swiglu_of(gate, linear, given.glu_alpha, given.clamp_limit, given.glu_bias)
        else:
            y = F.silu(gate) * linear
    scale = (
        None
        if given.quant_scale is None
        else _by_group(given.quant_scale, given.group_index, len(y), True)
    )
    if given.quant_mode == 1:
        smoothed = y if scale is None else y * scale
        values, found = dynamic(smoothed, dtype, "npu_dequant_swiglu_quant")
    else:
        divided = y if scale is None else y / scale
        if given.quant_offset is not None:
            divided = divided + _by_group(given.quant_offset, given.group_index, len(y), True)
        values, found = quantised_as(divided, dtype), torch.zeros(len(y))
    return values.reshape(*given.x.shape[:-1], -1), found.reshape(given.x.shape[:-1])
