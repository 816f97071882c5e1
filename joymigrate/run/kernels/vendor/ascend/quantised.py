"""W8A8 through npu_quant_matmul, W4A16 through npu_weight_quant_batchmatmul."""

from __future__ import annotations

import torch
import torch_npu
from torch import Tensor

from joymigrate.run.kernels.operator import Call
from joymigrate.run.kernels.weights import Int4Weight, Int8Weight, remember


def quant_matmul(x: Tensor, weight: Int8Weight) -> Tensor:
    """Static scales go in as the same scale for every row: one call for both kinds.

    An offset shifts every product by offset · (sum of the weights of an output), which is known
    when the weight is, and is taken off with the bias.
    """
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    if weight.x_scale is None:
        codes, scale = torch_npu.npu_dynamic_quant(rows)
    else:
        offset = weight.x_offset
        if offset is not None:  # a whole number; the documents name no float16 for it
            offset = offset.round().to(torch.int32 if rows.dtype is torch.float16 else rows.dtype)
        codes = torch_npu.npu_quantize(
            rows, weight.x_scale.to(rows.dtype), offset, torch.qint8, -1, True
        )
        scale = weight.x_scale.float().expand(rows.shape[0]).contiguous()
    transposed = remember(weight, "transposed", lambda: weight.values.T.contiguous())
    y: Tensor = torch_npu.npu_quant_matmul(
        codes, transposed, weight.scale, pertoken_scale=scale, output_dtype=x.dtype
    )
    bias = fold_offset(weight)
    if bias is not None:
        y = (y.float() + bias).to(x.dtype)
    return y.view(*x.shape[:-1], weight.shape[0])


def fold_offset(weight: Int8Weight) -> Tensor | None:
    """The bias less what the input's offset adds, float32 [N]."""
    if weight.x_offset is None or weight.x_scale is None:
        return weight.bias
    x_scale, x_offset = weight.x_scale, weight.x_offset
    shift: Tensor = remember(
        weight,
        "shift",
        lambda: weight.values.float().sum(1) * weight.scale * x_scale * x_offset,
    )
    return -shift if weight.bias is None else weight.bias - shift


def when_int4(call: Call) -> str | None:
    """Documented: groups of 32 or more, in multiples of 32, smaller than K."""
    if 0 in call.shape:
        return "for at least one row"
    _, outputs, inputs = call.shape
    group = int(call.variant.partition(" ")[2])
    if outputs % 8:
        return "for outputs in multiples of 8"
    if group == inputs:
        return None
    return None if group % 32 == 0 else f"for groups in multiples of 32, got {group}"


def int4_matmul(x: Tensor, weight: Int4Weight) -> Tensor:
    """The chip computes (value + offset) · scale with signed values, so offset = 8 - zero."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    order, scale, offset = remember(weight, f"chip {x.dtype}", lambda: pack(weight, x.dtype))
    group = 0 if weight.scale.shape[1] == 1 else weight.group
    y: Tensor = torch_npu.npu_weight_quant_batchmatmul(
        rows, order, scale, offset, antiquant_group_size=group
    )
    if weight.bias is not None:
        y = (y.float() + weight.bias).to(x.dtype)
    return y.view(*x.shape[:-1], weight.shape[0])


def pack(weight: Int4Weight, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Codes as [K, N / 8] int32; scale and offset [K / group, N] in the input's dtype."""
    signed = (weight.codes() - 8).T.contiguous()
    order = torch_npu.npu_convert_weight_to_int4pack(signed)
    offset = (8.0 - weight.zeros()).T.contiguous().to(dtype)
    scale = weight.scale.T.contiguous().to(dtype)
    if scale.shape[0] == 1:  # per output
        scale, offset = scale[0], offset[0]
    return order, scale, offset
