"""Quantised matrix products: int8 by int8, activations by quantised weights, with dequantisation.

Integer products are exact (float64 holds every sum of int8 products below 2^53).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.activations import TANH_OR_ERF
from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import (
    int4_pairs,
    saturate,
    torch_dtype,
)
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.quantise import packed_offset, real_scale

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None
GELU_NAMES = {"gelu_erf": TANH_OR_ERF[0], "gelu_tanh": TANH_OR_ERF[1]}


def unpack_int4(matrix: Tensor) -> Tensor:
    """int32 with eight int4 as int8; a transposed view was packed along its other axis."""
    if matrix.dtype != torch.int32:
        return matrix
    if matrix.is_contiguous() or matrix.dim() < 2:
        return int4_pairs(matrix)
    return int4_pairs(matrix.mT.contiguous()).mT


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """Product of two integer (or float8) matrices in float64."""
    return unpack_int4(left).double() @ unpack_int4(right).double()


def dequantise(
    product: Tensor, scale: Tensor, pertoken: Maybe, bias: Maybe, offset: Maybe
) -> Tensor:
    """(product [+ int32 bias])·scale·pertoken + offset [+ float bias]."""
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias.double()
    result = product * real_scale(scale).double() + packed_offset(scale)
    if pertoken is not None:
        result = result * pertoken.double().unsqueeze(-1)
    if offset is not None:
        result = result + offset.double()
    if bias is not None and bias.dtype != torch.int32:
        result = result + bias.double()
    return result


def as_output(result: Tensor, dtype: torch.dtype) -> Tensor:
    return result.to(dtype) if dtype.is_floating_point else saturate(result, dtype)


@reference(
    "npu_quant_matmul",
    source=DOCS.format("npu_quant_matmul"),
    without="group_sizes x1_dtype x2_dtype",
)
def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Maybe,
    pertoken_scale: Maybe,
    bias: Maybe,
    output_dtype: int | None,
) -> Tensor:
    """x1 @ x2 scaled per channel and per token; int8 unless told otherwise."""
    dtype = torch_dtype(output_dtype, torch.int8, "npu_quant_matmul")
    product = exact_product(x1, x2)
    if dtype == torch.int32:
        return saturate(product if bias is None else product + bias.double(), dtype)
    return as_output(dequantise(product, scale, pertoken_scale, bias, offset), dtype)


@reference("npu_quant_matmul_gelu", source=DOCS.format("npu_quant_matmul_gelu"))
def npu_quant_matmul_gelu(
    x1: Tensor, x2: Tensor, x1_scale: Tensor, x2_scale: Tensor, bias: Maybe, approximate: str | None
) -> Tensor:
    """gelu of the dequantised product, in the precision of the weight's scale."""
    found = dequantise(exact_product(x1, x2), x2_scale, x1_scale.reshape(-1), bias, None)
    activated = F.gelu(found, approximate=GELU_NAMES[approximate or "gelu_erf"])
    dtype = torch.bfloat16 if x2_scale.dtype == torch.bfloat16 else torch.float16
    return activated.to(dtype)


@reference("npu_quant_matmul_reduce_sum", source=DOCS.format("npu_quant_matmul_reduce_sum"))
def npu_quant_matmul_reduce_sum(x1: Tensor, x2: Tensor, x1_scale: Maybe, x2_scale: Maybe) -> Tensor:
    """Sum over the batch of x1 @ x2·x2_scale·x1_scale, bfloat16; x1 [B, M, K], x2 [B, K, N]."""
    product = exact_product(x1, x2)
    if x2_scale is not None:
        product = product * x2_scale.double()
    if x1_scale is not None:
        product = product * x1_scale.double().unsqueeze(-1)
    return product.sum(0).to(torch.bfloat16)


def antiquantise(weight: Tensor, scale: Tensor, offset: Maybe, group_size: int) -> Tensor:
    """(weight + offset)·scale as float32; per tensor, per channel, or per group of rows."""
    values = unpack_int4(weight).float()
    rows = values.shape[-2]

    def spread(factor: Tensor) -> Tensor:
        factor = real_scale(factor)
        if group_size and factor.dim() >= 2 and factor.shape[-2] > 1:
            return factor.repeat_interleave(group_size, -2)[..., :rows, :]
        return factor

    if offset is not None:
        values = values + spread(offset)
    return values * spread(scale)


@reference(
    "npu_weight_quant_batchmatmul",
    source=DOCS.format("npu_weight_quant_batchmatmul"),
    without="weight_dtype",
)
def npu_weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Maybe,
    quant_scale: Maybe,
    quant_offset: Maybe,
    bias: Maybe,
    antiquant_group_size: int,
) -> Tensor:
    """x @ ((weight + offset)·scale) + bias; int8 when an output scale is given."""
    matrix = antiquantise(weight, antiquant_scale, antiquant_offset, antiquant_group_size)
    result = x.float() @ matrix
    if bias is not None:
        result = result + bias.float()
    if quant_scale is None:
        return result.to(x.dtype)
    shift = packed_offset(quant_scale) if quant_offset is None else quant_offset.float()
    return saturate(result * real_scale(quant_scale) + shift, torch.int8)


@reference("npu_dequant_bias", source="op-plugin DequantBiasKernelNpuOpApi.cpp")
def npu_dequant_bias(
    x: Tensor,
    weight_scale: Tensor,
    activation_scale: Maybe,
    bias: Maybe,
    output_dtype: torch.dtype | None,
) -> Tensor:
    """int32 sums as real numbers: (x [+ int32 bias])·weight_scale·activation_scale [+ bias]."""
    found = dequantise(x.double(), weight_scale, activation_scale, bias, None)
    return found.to(output_dtype or torch.float16)


@reference(
    "npu_add_quant_matmul_",
    source=DOCS.format("npu_add_quant_matmul_"),
    without="group_sizes x1_dtype x2_dtype",
)
def npu_add_quant_matmul_(
    x: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, x1_scale: Maybe
) -> Tensor:
    """Adds the dequantised product to `self`, in place (per tensor and per channel scales)."""
    product = exact_product(x1, x2) * x2_scale.double()
    if x1_scale is not None:
        product = product * x1_scale.double().reshape(-1, 1)
    return x.copy_((working(x).double() + product).to(x.dtype))
