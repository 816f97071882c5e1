"""Quantisation of activations: static, dynamic, grouped; dequantisation; packed int4.

Rounding is half to even (`rint`) and saturating. int4 results come packed, eight to an int32,
lowest nibble first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.language import Text
from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import (
    Unsimulated,
    int4_pairs,
    saturate,
    torch_dtype,
)
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.precondition import PreconditionError

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None
INT4 = 7.0
LARGEST = {torch.int8: 127.0, torch.quint4x2: INT4, torch.float8_e4m3fn: 448.0}


def pack_int4(values: Tensor) -> Tensor:
    """int values in [-8, 7] → int32, eight to one, lowest nibble first."""
    lanes = values.to(torch.int64).reshape(*values.shape[:-1], -1, 8) & 0xF
    packed = (lanes << (torch.arange(8) * 4)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def quantised_as(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Real numbers, already scaled, as integers of `dtype` (int4 packed) or as float8."""
    if dtype == torch.quint4x2:
        return pack_int4(value.double().round().clamp(-8, 7))
    return saturate(value, dtype)


def limit_of(dtype: torch.dtype, operator: str) -> float:
    if dtype.is_floating_point:
        return float(torch.finfo(dtype).max)
    if dtype not in LARGEST:
        raise Unsimulated(operator, f"dtype {dtype}")
    return LARGEST[dtype]


def smooth_rows(x: Tensor, smooth: Maybe, group_index: Maybe, counts: bool = False) -> Tensor:
    """x·smooth; with groups, row i takes the smooth vector of its group (cumulative ends)."""
    wide = working(x)
    if smooth is None:
        return wide
    if group_index is None:
        return wide * working(smooth).reshape(-1 if smooth.dim() == 1 else smooth.shape)
    rows = wide.reshape(-1, x.shape[-1])
    groups = group_rows(group_index, len(rows), counts)
    return (rows * _of_group(smooth, groups)).reshape(x.shape)


def group_rows(group_index: Tensor, rows: int, counts: bool = False) -> Tensor:
    """The group of every row; rows behind the last group belong to the last one."""
    ends = group_index.long().cumsum(0) if counts else group_index.long()
    if counts and len(ends) and int(ends[-1]) > rows:
        wrong = "groups of {groups} rows in all for {rows} rows; counts are meant, not ends"
        raise PreconditionError(
            Text(wrong, groups=int(ends[-1]), rows=rows),
            "aclnnDequantSwigluQuantV2.md, ops-nn e5c3fa9",
        )
    found = torch.searchsorted(ends, torch.arange(rows), right=True)
    return found.clamp(max=len(ends) - 1)


def _of_group(factor: Tensor, groups: Tensor) -> Tensor:
    chosen = working(factor)[groups]
    return chosen if chosen.dim() == 2 else chosen.unsqueeze(-1)


def dynamic(
    x: Tensor, dtype: torch.dtype, operator: str, mode: str = "pertoken"
) -> tuple[Tensor, Tensor]:
    """Symmetric quantisation: values and scales (max|x| / limit); a zero row has scale 0."""
    size = x.abs()
    if mode == "pertensor":
        top = size.amax().reshape(1)
        wide = top
    elif mode == "perchannel":
        top = size.amax(-2)
        wide = top.unsqueeze(-2)
    else:
        top = size.amax(-1)
        wide = top.unsqueeze(-1)
    limit = limit_of(dtype, operator)
    scaled = torch.where(wide > 0, x * (limit / wide.clamp(min=torch.finfo(x.dtype).tiny)), x)
    return quantised_as(scaled, dtype), (top / limit).float()


@reference("npu_dynamic_quant", source=DOCS.format("npu_dynamic_quant"))
def npu_dynamic_quant(
    x: Tensor, smooth_scales: Maybe, group_index: Maybe, dst_type: int | None, quant_mode: str
) -> tuple[Tensor, Tensor]:
    """Quantised values and float32 scales, one per row by default."""
    dtype = torch_dtype(dst_type, torch.int8, "npu_dynamic_quant")
    return dynamic(
        smooth_rows(x, smooth_scales, group_index), dtype, "npu_dynamic_quant", quant_mode
    )


@reference("npu_dynamic_quant_asymmetric", source=DOCS.format("npu_dynamic_quant_asymmetric"))
def npu_dynamic_quant_asymmetric(
    x: Tensor, smooth_scales: Maybe, group_index: Maybe, dst_type: int | None, quant_mode: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, scales and offsets: value = round(x / scale + offset)."""
    dtype = torch_dtype(dst_type, torch.int8, "npu_dynamic_quant_asymmetric")
    low, high = (-8.0, 7.0) if dtype == torch.quint4x2 else (-128.0, 127.0)
    wide = smooth_rows(x, smooth_scales, group_index)
    axis = {"pertoken": -1, "perchannel": -2}.get(quant_mode)
    if axis is None:
        top, bottom = wide.amax().reshape(1), wide.amin().reshape(1)
    else:
        top, bottom = wide.amax(axis, keepdim=True), wide.amin(axis, keepdim=True)
    scale = (top - bottom) / (high - low)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    offset = high - top / safe
    values = quantised_as(wide / safe + offset, dtype)
    if axis is not None:
        scale, offset = scale.squeeze(axis), offset.squeeze(axis)
    return values, scale.float(), offset.float()


def _along(factor: Tensor, x: Tensor, axis: int) -> Tensor:
    """A per-channel factor broadcastable over x along `axis`."""
    if factor.numel() == 1 or factor.dim() == x.dim():
        return working(factor)
    shape = [1] * x.dim()
    shape[axis] = factor.numel()
    return working(factor).reshape(shape)


@reference("npu_quantize", source=DOCS.format("npu_quantize"))
def npu_quantize(
    x: Tensor, scales: Tensor, zero_points: Maybe, dtype: int, axis: int, div_mode: bool
) -> Tensor:
    """round(x / scales + zero_points), or round(x · scales + zero_points)."""
    wanted = torch_dtype(dtype, torch.int8, "npu_quantize")
    if not div_mode:
        axis = -2 if axis == -2 else -1
    scale = _along(scales, x, axis)
    offset = torch.zeros(1) if zero_points is None else _along(zero_points, x, axis)
    wide = working(x)
    scaled = wide / scale if div_mode else wide * scale
    return quantised_as(scaled + offset, wanted)


@reference("npu_anti_quant", source=DOCS.format("npu_anti_quant"))
def npu_anti_quant(x: Tensor, scale: Tensor, offset: Maybe, dst_dtype: int | None) -> Tensor:
    """(x + offset)·scale; an int32 x holds eight int4."""
    values = int4_pairs(x) if x.dtype == torch.int32 else x
    wide = values.float() + (0.0 if offset is None else offset.float())
    return (wide * scale.float()).to(torch_dtype(dst_dtype, torch.float16, "npu_anti_quant"))


@reference("npu_group_quant", source=DOCS.format("npu_group_quant"))
def npu_group_quant(
    x: Tensor,
    scale: Tensor,
    group_index: Tensor,
    offset: Maybe,
    dst_dtype: int | torch.dtype | None,
) -> Tensor:
    """round(x·scale of the row's group + offset); `group_index` holds cumulative ends."""
    dtype = torch_dtype(dst_dtype, torch.int8, "npu_group_quant")
    scaled = smooth_rows(x, scale, group_index) + (0.0 if offset is None else working(offset))
    return quantised_as(scaled, dtype)


@reference("npu_gelu_quant", source="op-plugin GeluQuantKernelNpuOpApi.cpp")
def npu_gelu_quant(
    x: Tensor,
    input_scale: Maybe,
    input_offset: Maybe,
    approximate: str,
    quant_mode: str,
    dst_type: int | None,
) -> tuple[Tensor, Tensor]:
    """Quantised gelu and its scales; static: round(gelu·scale + offset), no scales."""
    dtype = torch_dtype(dst_type, torch.int8, "npu_gelu_quant")
    y = F.gelu(working(x), approximate=approximate)
    if quant_mode == "dynamic":
        return dynamic(smooth_rows(y, input_scale, None), dtype, "npu_gelu_quant")
    if input_scale is None:
        raise RuntimeError("input_scale cannot be None when quant_mode is 'static'")
    scaled = y * working(input_scale)
    offset = 0.0 if input_offset is None else working(input_offset)
    return quantised_as(scaled + offset, dtype), torch.empty(0)


@reference("npu_trans_quant_param", source=DOCS.format("npu_trans_quant_param"))
def npu_trans_quant_param(scale: Tensor, offset: Maybe, round_mode: int | None) -> Tensor:
    """float32 scales as the int64 that quantised matmuls take: the scale's bits, 19 of them,
    with the offset's 9 bits at bit 37 and a marker at bit 46."""
    count = max(scale.numel(), 1 if offset is None else offset.numel())
    scales = scale.float().reshape(-1).expand(count) if scale.numel() == 1 else scale.reshape(-1)
    bits = scales.float().contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if round_mode == 1:
        bits = bits + 0x1000
    packed = bits & 0xFFFFE000 | (1 << 46)
    if offset is not None:
        shift = offset.float().reshape(-1).expand(count).round().clamp(-256, 255).to(torch.int64)
        packed = packed | ((shift & 0x1FF) << 37)
    return packed if scale.dim() == 1 else packed.reshape(scale.shape)


def real_scale(scale: Tensor) -> Tensor:
    """A quantised matmul's scale as float32: the packed int64 form, or the number itself."""
    if scale.dtype not in (torch.int64, torch.uint64):
        return scale.float()
    bits = scale.to(torch.int64) & 0xFFFFFFFF
    signed = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
    return signed.contiguous().view(torch.float32)


def packed_offset(scale: Tensor) -> Tensor | float:
    """The nine-bit offset that npu_trans_quant_param put beside the scale; 0 for plain scales."""
    if scale.dtype not in (torch.int64, torch.uint64):
        return 0.0
    bits = (scale.to(torch.int64) >> 37) & 0x1FF
    return torch.where(bits > 255, bits - 512, bits).float()


@reference("npu_convert_weight_to_int4pack", source=DOCS.format("npu_convert_weight_to_int4pack"))
def npu_convert_weight_to_int4pack(weight: Tensor) -> Tensor:
    """int32 values in [-8, 7], [K, N] → [K, N/8] with eight to an int32."""
    if weight.dtype != torch.int32:
        raise Unsimulated("npu_convert_weight_to_int4pack", f"weights of {weight.dtype}")
    return pack_int4(weight)


@reference("npu_dynamic_block_quant", source="torch_npu _op_plugin_docs.py")
def npu_dynamic_block_quant(
    x: Tensor,
    min_scale: float,
    round_mode: str,
    dst_type: int,
    row_block_size: int,
    col_block_size: int,
    dst_type_max: float,
) -> tuple[Tensor, Tensor]:
    """Quantised x, and a scale (float32) for each block of rows and columns."""
    dtype = torch_dtype(dst_type, torch.int8, "npu_dynamic_block_quant")
    if dtype is not torch.int8 or round_mode != "rint":
        raise Unsimulated("npu_dynamic_block_quant", f"dst_type {dst_type}, {round_mode}")
    wide = working(x)
    rows, columns = x.shape[-2:]
    gaps = (0, -columns % col_block_size, 0, -rows % row_block_size)
    padded = F.pad(wide, gaps)
    down, across = padded.shape[-2] // row_block_size, padded.shape[-1] // col_block_size
    blocks = padded.reshape(*x.shape[:-2], down, row_block_size, across, col_block_size)
    scale = (blocks.abs().amax((-3, -1)) / (dst_type_max or LARGEST[dtype])).clamp(min=min_scale)
    each = scale.repeat_interleave(row_block_size, -2).repeat_interleave(col_block_size, -1)
    each = each[..., :rows, :columns]
    scaled = torch.where(each > 0, wide / each, torch.zeros_like(wide))
    return saturate(scaled, dtype), scale
