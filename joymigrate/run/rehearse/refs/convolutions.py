"""Convolutions under the vendor's names, deformable and masked causal ones, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import vjp, working
from joymigrate.run.rehearse.refs.linear import mask_unasked

BETA = "op-plugin docs/zh/custom_APIs/torch_npu/（beta）torch_npu-{}.md"
FORMULAS = "op-plugin derivatives.yaml"
Maybe = Tensor | None
Ints = Sequence[int]


def convolve(
    x: Tensor, weight: Tensor, bias: Maybe, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    function: Callable[..., Tensor] = F.conv3d if x.dim() == 5 else F.conv2d
    return function(x, weight, bias, list(stride), list(padding), list(dilation), groups)


def _round_result(
    function: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Maybe
) -> Tensor:
    shift = None if bias is None else working(bias)
    return function(working(x), working(weight), shift).to(x.dtype)


@reference("npu_conv2d", "npu_conv3d", "npu_convolution", source=BETA.format("npu_convolution"))
def npu_convolution(
    x: Tensor, weight: Tensor, bias: Maybe, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    return _round_result(
        lambda a, w, b: convolve(a, w, b, stride, padding, dilation, groups), x, weight, bias
    )


def _bias_of(grad: Tensor) -> Tensor:
    return grad.new_zeros(grad.shape[1])


@reference(
    "npu_conv2d_backward", "npu_conv3d_backward", "npu_convolution_backward", source=FORMULAS
)
def npu_convolution_backward(given: ReferenceArguments) -> tuple[Maybe, ...]:
    """Gradients of input, weight and bias."""
    found = vjp(
        lambda a, w, b: convolve(
            a, w, b, given.stride, given.padding, given.dilation, given.groups
        ),
        (given.x, given.weight, _bias_of(given.grad_output)),
        given.grad_output,
    )
    return mask_unasked(found, given.output_mask)


def convolve_transposed(
    x: Tensor,
    weight: Tensor,
    bias: Maybe,
    padding: Ints,
    output_padding: Ints,
    stride: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    function: Callable[..., Tensor] = F.conv_transpose3d if x.dim() == 5 else F.conv_transpose2d
    sizes = [list(part) for part in (stride, padding, output_padding, dilation)]
    return function(x, weight, bias, *sizes[:3], groups, sizes[3])


@reference(
    "npu_conv_transpose2d",
    "npu_convolution_transpose",
    source=BETA.format("npu_convolution_transpose"),
)
def npu_convolution_transpose(given: ReferenceArguments) -> Tensor:
    return _round_result(
        lambda a, w, b: convolve_transposed(
            a, w, b, given.padding, given.output_padding, given.stride, given.dilation, given.groups
        ),
        given.x,
        given.weight,
        given.bias,
    )


@reference(
    "npu_conv_transpose2d_backward",
    "npu_conv_transpose3d_backward",
    "npu_convolution_transpose_backward",
    source=FORMULAS,
)
def npu_convolution_transpose_backward(given: ReferenceArguments) -> tuple[Maybe, ...]:
    found = vjp(
        lambda a, w, b: convolve_transposed(
            a, w, b, given.padding, given.output_padding, given.stride, given.dilation, given.groups
        ),
        (given.x, given.weight, _bias_of(given.grad_output)),
        given.grad_output,
    )
    return mask_unasked(found, given.output_mask)


@reference("slow_conv_transpose2d_backward", source="torch derivatives.yaml")
def slow_conv_transpose2d_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    return npu_convolution_transpose_backward(
        x, grad_output, weight, padding, output_padding, stride, dilation, 1, output_mask
    )


@reference("slow_conv_dilated2d_backward", source="torch derivatives.yaml")
def slow_conv_dilated2d_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    return npu_convolution_backward(
        x, grad_output, weight, stride, padding, dilation, 1, output_mask
    )


@reference("aten::_conv_depthwise2d", source="torch native_functions.yaml")
def conv_depthwise2d(
    x: Tensor, weight: Tensor, bias: Maybe, stride: Ints, padding: Ints, dilation: Ints
) -> Tensor:
    return npu_convolution(x, weight, bias, stride, padding, dilation, x.shape[1])


@reference("_conv_depthwise2d_backward", source="torch derivatives.yaml")
def conv_depthwise2d_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    wanted = [*output_mask, False]
    return npu_convolution_backward(
        x, grad_output, weight, stride, padding, dilation, x.shape[1], wanted
    )[:2]


# ── deformable convolution ──────────────────────────────────────────────────────────────────────


def sample_taps(
    x: Tensor,
    offset: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    modulated: bool,
) -> Tensor:
    """The input at every kernel tap moved by its offset, [B, C, kh·Hout, kw·Wout].

    `offset` is [B, 3·groups·kh·kw, Hout, Wout]: all shifts in x, then all in y, then (when
    modulated) the factors. Outside of the input there are zeros.
    """
    batch, channels, height, width = x.shape
    kh, kw = kernel
    rows, columns = offset.shape[-2:]
    parts = offset.reshape(batch, 3 if modulated else 2, groups, kh, kw, rows, columns)
    base_y = torch.arange(rows).view(-1, 1) * stride[-2] - padding[0]
    base_x = torch.arange(columns).view(1, -1) * stride[-1] - padding[2]
    tap_y = (torch.arange(kh) * dilation[-2]).view(kh, 1, 1, 1)
    tap_x = (torch.arange(kw) * dilation[-1]).view(1, kw, 1, 1)
    at_y = parts[:, 1] + base_y + tap_y  # [B, groups, kh, kw, Hout, Wout]
    at_x = parts[:, 0] + base_x + tap_x
    grid = torch.stack(((2 * at_x + 1) / width - 1, (2 * at_y + 1) / height - 1), -1).reshape(
        batch * groups, kh * kw * rows, columns, 2
    )
    source = x.reshape(batch * groups, channels // groups, height, width)
    found = F.grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    found = found.reshape(batch, groups, channels // groups, kh, kw, rows, columns)
    if modulated:
        found = found * parts[:, 2].unsqueeze(2)
    found = found.reshape(batch, channels, kh, kw, rows, columns)
    return found.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels, rows * kh, columns * kw)


@reference("npu_deformable_conv2d", source=BETA.format("npu_deformable_conv2d"))
def npu_deformable_conv2d(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """The convolution, and the moved input that the backward operator reads.

    stride and dilation are [N, C, H, W], padding is [top, bottom, left, right].
    """
    moved = sample_taps(
        working(given.x),
        working(given.offset),
        given.kernel_size,
        given.stride,
        given.padding,
        given.dilation,
        given.deformable_groups,
        given.modulated,
    )
    shift = None if given.bias is None else working(given.bias)
    found = F.conv2d(
        moved, working(given.weight), shift, list(given.kernel_size), groups=given.groups
    )
    return found.to(given.x.dtype), moved.to(given.x.dtype)


@reference("npu_deformable_conv2dbk", source=BETA.format("npu_deformable_conv2d"))
def npu_deformable_conv2dbk(
    x: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    offset: Tensor,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    deformable_groups: int,
    modulated: bool,
) -> tuple[Maybe, ...]:
    """Gradients of input, weight, offset and bias."""

    def forward(a: Tensor, w: Tensor, o: Tensor, b: Tensor) -> Tensor:
        moved = sample_taps(
            a, o, kernel_size, stride, padding, dilation, deformable_groups, modulated
        )
        return F.conv2d(moved, w, b, list(kernel_size), groups=groups)

    return vjp(forward, (x, weight, offset, _bias_of(grad_output)), grad_output)


# ── causal convolution over a sequence ──────────────────────────────────────────────────────────


def causal(x: Tensor, weight: Tensor, mask: Maybe) -> Tensor:
    """Depthwise convolution of x [S, B, H] along S by weight [W, H], seeing no later step."""
    size = weight.shape[0]
    padded = F.pad(x, (0, 0, 0, 0, size - 1, 0))
    found = torch.stack([padded[n : n + len(x)] * weight[n] for n in range(size)]).sum(0)
    return found if mask is None else found * mask.T.unsqueeze(-1).to(x.dtype)


@reference(
    "npu_masked_causal_conv1d",
    source="op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_masked_causal_conv1d.md",
)
def npu_masked_causal_conv1d(x: Tensor, weight: Tensor, mask: Maybe) -> Tensor:
    return causal(working(x), working(weight), mask).to(x.dtype)


@reference("npu_masked_causal_conv1d_backward", source=FORMULAS)
def npu_masked_causal_conv1d_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, mask: Maybe
) -> tuple[Maybe, ...]:
    return vjp(lambda a, w: causal(a, w, mask), (x, weight), grad_output)
