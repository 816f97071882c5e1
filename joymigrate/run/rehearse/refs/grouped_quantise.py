"""Rows of several groups gated or quantised at once, and kernels that quantise their result."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.block_formats import (
    element_of,
    exponents,
    mx_quantised,
    round_to_grid,
    store_bytes,
)
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate, torch_dtype
from joymigrate.run.rehearse.refs.gradients import gradients_of, working
from joymigrate.run.rehearse.refs.quantise import real_scale

KERNEL = "CANN ops-nn docs/aclnn{}.md"
Maybe = Tensor | None


def gate(x: Tensor, weight: Maybe, limit: float, rows: int) -> Tensor:
    """silu(left) * right [T, H] of the first `rows`, clamped where a limit is given; rest zero."""
    left, right = x.chunk(2, -1)
    if limit > 0:
        left, right = left.clamp(max=limit), right.clamp(-limit, limit)
    found = F.silu(left) * right
    if weight is not None:
        found = found * weight.reshape(*found.shape[:-1], 1)
    seen = (torch.arange(found.shape[:-1].numel()) < rows).reshape(*found.shape[:-1], 1)
    return torch.where(seen, found, torch.zeros_like(found))


def used_rows(x: Tensor, group_index: Maybe) -> int:
    rows = x.shape[:-1].numel()
    return rows if group_index is None else min(int(group_index.sum()), rows)


@reference("npu_swiglu_group_quant_backward", source=KERNEL.format("SwigluGroupQuantGrad"))
def npu_swiglu_group_quant_backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Maybe,
    y_origin: Maybe,
    group_index: Maybe,
    clamp_limit: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weights; that of the weights is by `y_origin`, as given."""
    rows = used_rows(x, group_index)

    def forward(value: Tensor) -> Tensor:
        return gate(value, None if weight is None else working(weight), clamp_limit, rows)

    dx = gradients_of(forward, [x], working(grad_y))[0]
    if weight is None:
        return dx, torch.empty(0)
    if y_origin is None:
        raise Unsimulated("npu_swiglu_group_quant_backward", "weights without y_origin")
    found = (working(grad_y) * working(y_origin)).sum(-1).flatten()
    found = torch.where(torch.arange(len(found)) < rows, found, 0.0)
    return dx, found.reshape(weight.shape).to(weight.dtype)


def dual_axis(
    values: Tensor,
    group_index: Maybe,
    operator: str,
    mode: str,
    algorithm: int,
    dst: int,
    most: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Elements and scales along the last axis, then along the last but one."""
    if group_index is not None:
        raise Unsimulated(operator, "groups, whose scales' places no document gives")
    found: list[Tensor] = []
    for axis in (-1, -2):
        how = {"axis": axis, "mode": mode, "algorithm": algorithm, "most": most}
        found += mx_quantised(values, dst, operator, **how)  # type: ignore[arg-type]
    return found[0], found[1], found[2], found[3]


def swiglu(x: Tensor, activate_left: bool) -> Tensor:
    left, right = x.chunk(2, -1)
    return F.silu(left) * right if activate_left else left * F.silu(right)


@reference("npu_swiglu_mx_quant_with_dual_axis", source=KERNEL.format("SwigluMxQuantWithDualAxis"))
def npu_swiglu_mx_quant_with_dual_axis(
    x: Tensor,
    group_index: Maybe,
    activate_left: bool,
    round_mode: str,
    scale_alg: int,
    dst_type: int,
    dst_type_max: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = swiglu(working(x), activate_left).to(x.dtype)
    how = round_mode, scale_alg, dst_type, dst_type_max
    return dual_axis(found, group_index, "npu_swiglu_mx_quant_with_dual_axis", *how)


@reference(
    "_npu_swiglu_backward_mx_quant_with_dual_axis",
    source=KERNEL.format("SwigluBackwardMxQuantWithDualAxis"),
)
def _npu_swiglu_backward_mx_quant_with_dual_axis(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of x, quantised."""
    dx = gradients_of(
        lambda value: swiglu(value, given.activate_left), [given.x], working(given.y_grad)
    )[0]
    how = given.round_mode, given.scale_alg, given.dst_type, given.dst_type_max
    return dual_axis(dx, given.group_index, "_npu_swiglu_backward_mx_quant_with_dual_axis", *how)


@reference("_npu_rms_norm_backward_quant", source=KERNEL.format("RmsNormGradQuant"))
def _npu_rms_norm_backward_quant(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """The gradient of x as int8, and that of gamma in float32."""
    dtype = torch_dtype(given.dst_type, torch.int8, "_npu_rms_norm_backward_quant")
    if given.quant_mode != "static" or dtype is not torch.int8:
        raise Unsimulated("_npu_rms_norm_backward_quant", f"{given.quant_mode} to {dtype}")
    factor, scale = working(given.rstd), working(given.scale_x)
    if factor.ndim < given.x.ndim:
        factor = factor.unsqueeze(-1)
    normed, through = working(given.x) * factor, working(given.dy) * working(given.gamma)
    dx = (through - normed * (through * normed).mean(-1, keepdim=True)) * factor
    dx = dx / scale if given.div_mode or given.div_mode is None else dx * scale
    if given.offset_x is not None:
        dx = dx + working(given.offset_x)
    d_gamma = (working(given.dy) * normed).reshape(-1, *given.gamma.shape).sum(0)
    return saturate(dx, torch.int8), d_gamma.float()


@reference("npu_quant_conv2d", source=KERNEL.format("QuantConvolution"))
def npu_quant_conv2d(given: ReferenceArguments) -> Tensor:
    """Convolution of int8 or float8, times packed scales per channel, plus bias (int32: before)."""
    if given.input_dtype is not None or given.offset is not None or given.round_mode != "rint":
        raise Unsimulated("npu_quant_conv2d", f"offsets, hifloat8 or {given.round_mode}")
    if given.offset_x and any(given.pads):
        raise Unsimulated("npu_quant_conv2d", "padding with offset_x")
    how = list(given.strides), list(given.pads), list(given.dilations), given.groups
    found = F.conv2d(given.input.double(), given.weight.double(), None, *how)
    column = (1, -1, 1, 1)
    if given.bias is not None and given.bias.dtype == torch.int32:
        found = found + given.bias.double().reshape(column)
    found = found * real_scale(given.scale).double().reshape(column)
    if given.bias is not None and given.bias.dtype != torch.int32:
        found = found + given.bias.double().reshape(column)
    return found.to(torch_dtype(given.output_dtype, torch.float16, "npu_quant_conv2d"))


@reference("npu_dynamic_block_mx_quant", source=KERNEL.format("DynamicBlockMxQuant"))
def npu_dynamic_block_mx_quant(
    input: Tensor, round_mode: str, dst_type: int, scale_alg: int, dst_type_max: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One exponent for each square of 32 by 32: elements, and the scales along both axes."""
    operator = "npu_dynamic_block_mx_quant"
    element = element_of(dst_type, operator)
    rows, columns = input.shape[-2:]
    gaps = (0, -columns % 32, 0, -rows % 32)
    squares = F.pad(working(input), gaps).unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))  # type: ignore[no-untyped-call]
    shared = exponents(squares.abs().amax((-3, -1)), element, scale_alg, dst_type_max, operator)
    each = shared.repeat_interleave(32, -2)[..., :rows, :]
    across = shared.repeat_interleave(32, -1)[..., :columns]
    wide = each.repeat_interleave(32, -1)[..., :columns]
    elements = store_bytes(
        round_to_grid(torch.ldexp(working(input), -wide), element, round_mode, operator), element
    )
    scales = F.pad((each + 127).to(torch.uint8), (0, each.shape[-1] % 2))
    other = F.pad((across + 127).to(torch.uint8), (0, 0, 0, across.shape[-2] % 2))
    first = scales.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    second = other.unflatten(-2, (-1, 2)).transpose(-1, -2)  # type: ignore[no-untyped-call]
    return elements, first.contiguous(), second.contiguous()
