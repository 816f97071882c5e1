"""Products that quantise their input themselves (310P), and batches of float8."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.block_formats import E4M3, mx_dequantised
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate, torch_dtype
from joymigrate.run.rehearse.refs.grouped_matmul import bounds
from joymigrate.run.rehearse.refs.quant_matmul import exact_product

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
TESTS = "op-plugin test/test_base_ops/{}.py"
Maybe = Tensor | None
INT8 = 127.0


def quantise_rows(
    x: Tensor, scale: Maybe, smooth: Maybe, mode: str | None, operator: str
) -> tuple[Tensor, Tensor]:
    """int8 x and the scales of its rows [M, 1]; they are the rows' own maxima unless given."""
    wide = x.float() if smooth is None else x.float() * smooth.float()
    if mode not in (None, "pertoken", "pertensor"):
        raise Unsimulated(operator, f"quant_mode {mode}")
    if scale is None:
        if mode == "pertensor":
            raise RuntimeError(f"{operator}: x_scale is needed for quant_mode 'pertensor'")
        own = wide.abs().amax(-1, keepdim=True) / INT8
    else:
        own = scale.float().reshape(-1, 1).expand(len(x), 1)
    safe = torch.where(own == 0, torch.ones_like(own), own)
    return saturate(wide * (1.0 / safe), torch.int8), own


@reference(
    "npu_quant_matmul_dequant",
    source=TESTS.format("test_quant_matmul_dequant"),
    without="bias x_offset",
)
def npu_quant_matmul_dequant(
    x: Tensor,
    quantized_weight: Tensor,
    weight_scale: Tensor,
    x_scale: Maybe,
    smooth_scale: Maybe,
    quant_mode: str | None,
) -> Tensor:
    """x [M, K] as int8 times weight [N, K], times the scales of rows and channels."""
    operator = "npu_quant_matmul_dequant"
    values, scale = quantise_rows(x, x_scale, smooth_scale, quant_mode, operator)
    found = exact_product(values, quantized_weight.mT) * weight_scale.double() * scale.double()
    return found.to(x.dtype)


@reference(
    "npu_quant_grouped_matmul_dequant",
    source=TESTS.format("test_quant_grouped_matmul_dequant"),
    without="bias x_offset",
)
def npu_quant_grouped_matmul_dequant(
    x: Tensor,
    quantized_weight: Tensor,
    weight_scale: Tensor,
    group_list: Tensor,
    x_scale: Maybe,
    smooth_scale: Maybe,
    quant_mode: str | None,
) -> Tensor:
    """The same by group: weight [G, N, K], `group_list` the ends of the groups."""
    operator = "npu_quant_grouped_matmul_dequant"
    values, scale = quantise_rows(x, x_scale, smooth_scale, quant_mode, operator)
    found = torch.zeros(len(x), quantized_weight.shape[1], dtype=x.dtype)
    for group, start, stop in bounds(group_list, 0, len(quantized_weight)):
        part = exact_product(values[start:stop], quantized_weight[group].mT)
        part = part * weight_scale[group].double() * scale[start:stop].double()
        found[start:stop] = part.to(x.dtype)
    return found


@reference("npu_transpose_quant_batchmatmul", source=DOCS.format("npu_transpose_quant_batchmatmul"))
def npu_transpose_quant_batchmatmul(given: ReferenceArguments) -> Tensor:
    """x1 [M, B, K] and x2 [B, K, N] (or [B, N, K]) of float8: [M, B, N], scaled per row and column,
    or with block scales."""
    x1_scale = given.x1_scale
    x2_scale = given.x2_scale
    operator = "npu_transpose_quant_batchmatmul"
    if given.bias is not None or (given.batch_split_factor or 1) != 1 or given.x1_dtype in (0, 290):
        raise Unsimulated(operator, "bias, batch_split_factor or hifloat8")
    turned = list(given.perm_x2 or (0, 1, 2)) == [0, 2, 1]
    left, right = given.x1.double(), given.x2.double()
    if x1_scale is not None and x1_scale.dim() == 4:
        assert x2_scale is not None
        left = mx_dequantised(given.x1, x1_scale, E4M3, -1).double()
        right = mx_dequantised(given.x2, x2_scale, E4M3, -1 if turned else -2).double()
        x1_scale = x2_scale = None
    found: Tensor = left.transpose(0, 1) @ (right.mT if turned else right)
    if x2_scale is not None:
        found = found * x2_scale.double()
    if x1_scale is not None:
        found = found * x1_scale.double().reshape(-1, 1)
    return found.transpose(0, 1).contiguous().to(torch_dtype(given.dtype, torch.bfloat16, operator))
