"""Grouped quantised products with a gated unit behind, quantised again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.activations import swiglu_of
from joymigrate.run.rehearse.refs.block_formats import (
    E4M3,
    E5M2,
    ELEMENTS,
    mx_dequantised,
    mx_quantised,
)
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, torch_dtype
from joymigrate.run.rehearse.refs.grouped_matmul import Experts, bounds, multiply_groups
from joymigrate.run.rehearse.refs.quant_matmul import antiquantise, unpack_int4
from joymigrate.run.rehearse.refs.quantise import dynamic

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None
BLOCKS = 2  # dequant_mode and quant_mode of block formats
LOW = 8  # what the halves of an int8 are shifted by, where int8 meets int4


@reference(
    "npu_grouped_matmul_swiglu_quant",
    source=DOCS.format("npu_grouped_matmul_swiglu_quant_v2"),
    without="bias offset",
)
def npu_grouped_matmul_swiglu_quant(
    x: Tensor, weight: Tensor, group_list: Tensor, weight_scale: Tensor, x_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """int8 grouped product, dequantised, swiglu, and quantised again per token."""
    (wide,) = multiply_groups(
        [x],
        Experts([weight], scale=[weight_scale]),
        group_list,
        kind=0,
        axis=0,
        single=True,
        pertoken=[x_scale],
        act=0,
        dtype=torch.float32,
    )
    values, scale = dynamic(swiglu_of(wide, -1), torch.int8, "npu_grouped_matmul_swiglu_quant")
    return values, scale, torch.zeros(())  # the third output is in use for offsets alone


def by_group(x: Tensor, parts: Sequence[Tensor], groups: Tensor, kind: int) -> Tensor:
    """x [M, K] in float64 times each group's float weights; rows behind the last group are zero."""
    found = torch.zeros(x.shape[0], parts[0].shape[-1], dtype=torch.float64)
    for group, start, stop in bounds(groups, kind, len(parts)):
        found[start:stop] = x[start:stop].double() @ parts[group].double()
    return found


def halves(
    x: Tensor, weight: Tensor, scale: Tensor, assist: Tensor, groups: Tensor, kind: int
) -> Tensor:
    """int8 by int4: x is taken as halves whose sum is x - 8; `assist` [E, N] adds the rest."""
    sizes = [unpack_int4(one).shape[0] for one in weight]
    parts = [
        antiquantise(one, own, None, size // own.shape[0] if own.dim() == 2 else 0)
        for one, own, size in zip(weight, scale, sizes, strict=True)
    ]
    found = by_group(x.double() - LOW, parts, groups, kind)
    for group, start, stop in bounds(groups, kind, len(parts)):
        found[start:stop] += assist[group].double()
    return found


@reference(
    "npu_grouped_matmul_swiglu_quant_v2",
    source=DOCS.format("npu_grouped_matmul_swiglu_quant_v2"),
    without="bias x_dtype weight_dtype",
)
def npu_grouped_matmul_swiglu_quant_v2(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """The gated unit of the dequantised products, quantised per token or in blocks."""
    operator = "npu_grouped_matmul_swiglu_quant_v2"
    kind, (matrix,), (scale,) = given.group_list_type or 0, given.weight, given.weight_scale
    native = {one.torch: one for one in (E4M3, E5M2)}
    if given.dequant_mode == BLOCKS:
        rows = mx_dequantised(given.x, given.x_scale, native[given.x.dtype], -1)
        real = mx_dequantised(matrix, scale, native[matrix.dtype], -2)
        wide = by_group(rows, list(real), given.group_list, kind)
    elif given.weight_assist_matrix:
        wide = halves(given.x, matrix, scale, given.weight_assist_matrix[0], given.group_list, kind)
        wide = wide * given.x_scale.double().unsqueeze(-1)
    else:
        parts = [
            unpack_int4(one).double() * own.double() for one, own in zip(matrix, scale, strict=True)
        ]
        wide = by_group(
            unpack_int4(given.x), parts, given.group_list, kind
        ) * given.x_scale.double().unsqueeze(-1)
    gated = swiglu_of(wide.float(), -1)
    if given.smooth_scale is not None:
        for group, start, stop in bounds(given.group_list, kind, len(matrix)):
            gated[start:stop] *= given.smooth_scale[group].float()
    if given.quant_mode == BLOCKS:
        return mx_quantised(
            gated, 292 if given.quant_dtype is None else given.quant_dtype, operator
        )
    if given.quant_dtype in ELEMENTS and ELEMENTS[given.quant_dtype].packed:
        raise Unsimulated(operator, "float4 per token")
    return dynamic(gated, torch_dtype(given.quant_dtype, torch.int8, operator), operator)
