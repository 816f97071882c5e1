"""RMS, layer, group and deep normalisation, forward and backward.

Statistics are float32 with the shape of the input, 1 in place of every normalised axis.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import working

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
META = "torch_npu op_plugin/meta/_meta_registrations.py {}"
Three = tuple[Tensor, Tensor, Tensor]
Four = tuple[Tensor, Tensor, Tensor, Tensor]
Maybe = Tensor | None


def axes_of(gamma: Tensor) -> tuple[int, ...]:
    """The trailing axes that a weight of this shape normalises."""
    return tuple(range(-gamma.dim(), 0))


def rms_of(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x²) + epsilon) · gamma, and the factor; both in working precision."""
    x = working(x)
    rstd = torch.rsqrt(x.square().mean(axes_of(gamma), keepdim=True) + epsilon)
    return x * rstd * working(gamma), rstd


def layer_of(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Three:
    """Layer norm, mean and reciprocal deviation in working precision."""
    x = working(x)
    axes = axes_of(gamma)
    mean = x.mean(axes, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(axes, keepdim=True) + epsilon)
    return (x - mean) * rstd * working(gamma) + working(beta), mean, rstd


@reference("npu_rms_norm", source=DOCS.format("npu_rms_norm"))
def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    y, rstd = rms_of(x, gamma, epsilon)
    return y.to(x.dtype), rstd.float()


@reference("npu_gemma_rms_norm", source=META.format("npu_gemma_rms_norm"))
def npu_gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The weight is 1 + gamma."""
    y, rstd = rms_of(x, 1 + working(gamma), epsilon)
    return y.to(x.dtype), rstd.float()


@reference("npu_rms_norm_backward", source=DOCS.format("npu_rms_norm"))
def npu_rms_norm_backward(
    dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """dx in x's dtype, dgamma in float32."""
    grad, wide, weight, factor = working(dy), working(x), working(gamma), working(rstd)
    normal = wide * factor
    weighted = grad * weight
    dx = factor * (weighted - normal * (weighted * normal).mean(axes_of(gamma), keepdim=True))
    dgamma = (grad * normal).reshape(-1, *gamma.shape).sum(0)
    return dx.to(x.dtype), dgamma.float()


@reference("npu_add_rms_norm", source=DOCS.format("npu_add_rms_norm"))
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Three:
    """Normalised sum, reciprocal rms, and the sum; the sum is not rounded before the norm."""
    total = working(x1) + working(x2)
    y, rstd = rms_of(total, gamma, epsilon)
    return y.to(x1.dtype), rstd.float(), total.to(x1.dtype)


@reference("npu_add_rms_norm_v2", source="op-plugin AddRmsNormV2KernelNpuOpApi.cpp")
def npu_add_rms_norm_v2(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """In place: x1 becomes the normalised sum, x2 the sum; returns the reciprocal rms."""
    y, rstd, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(total)
    return rstd


@reference("npu_add_rms_norm_cast", source=META.format("npu_add_rms_norm_cast"))
def npu_add_rms_norm_cast(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Four:
    """Normalised sum in float32 and in x1's dtype, reciprocal rms, and the sum."""
    y, rstd, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, total


@reference("npu_add_layer_norm", source=META.format("npu_add_layer_norm"))
def npu_add_layer_norm(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Four:
    """Layer norm of the sum, mean, reciprocal deviation, and the sum."""
    total = working(x1) + working(x2)
    y, mean, rstd = layer_of(total, gamma, beta, epsilon)
    dtype = x1.dtype if x1.dtype == x2.dtype else torch.float32
    return y.to(dtype), mean.float(), rstd.float(), total.to(dtype)


@reference("npu_add_layer_norm_backward", source="op-plugin AddLayerNormBackwardKernelNpuOpApi.cpp")
def npu_add_layer_norm_backward(
    dy_opt: Maybe,
    x1: Tensor,
    x2: Tensor,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum_opt: Maybe,
) -> Four:
    """dx (twice), dgamma and dbeta in float32; `dsum_opt` is the gradient of the sum itself."""
    total = working(x1) + working(x2)
    grad = torch.zeros_like(total) if dy_opt is None else working(dy_opt)
    dx, dgamma, dbeta = _layer_backward(grad, total, gamma, working(mean), working(rstd))
    if dsum_opt is not None:
        dx = dx + working(dsum_opt)
    dx = dx.to(x1.dtype)
    return dx, dx.clone(), dgamma, dbeta


def _layer_backward(grad: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Three:
    axes = axes_of(gamma)
    normal = (x - mean) * rstd
    weighted = grad * working(gamma)
    centred = weighted - weighted.mean(axes, keepdim=True)
    dx = rstd * (centred - normal * (weighted * normal).mean(axes, keepdim=True))
    dgamma = (grad * normal).reshape(-1, *gamma.shape).sum(0).float()
    return dx, dgamma, grad.reshape(-1, *gamma.shape).sum(0).float()


@reference("npu_deep_norm", source=META.format("npu_deep_norm"))
def npu_deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float, epsilon: float
) -> Three:
    """Mean, reciprocal deviation, and layer norm of alpha·x + gx."""
    y, mean, rstd = layer_of(alpha * working(x) + working(gx), gamma, beta, epsilon)
    return mean.float(), rstd.float(), y.to(x.dtype)


@reference("npu_deep_norm_backward", source="op-plugin DeepNormBackwardKernelOpApi.cpp")
def npu_deep_norm_backward(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float
) -> Four:
    """dx, dgx, dbeta, dgamma."""
    total = alpha * working(x) + working(gx)
    dsum, dgamma, dbeta = _layer_backward(working(dy), total, gamma, working(mean), working(rstd))
    return (alpha * dsum).to(x.dtype), dsum.to(gx.dtype), dbeta, dgamma


@reference("npu_layer_norm_eval", source="op-plugin （beta）torch_npu-npu_layer_norm_eval.md")
def npu_layer_norm_eval(
    x: Tensor, normalized_shape: list[int], weight: Maybe, bias: Maybe, eps: float
) -> Tensor:
    found = F.layer_norm(
        working(x),
        normalized_shape,
        None if weight is None else working(weight),
        None if bias is None else working(bias),
        eps,
    )
    return found.to(x.dtype)


@reference("npu_layernorm_grad", source="op-plugin LayerNormBackwardKernelNpu.cpp")
def npu_layernorm_grad(
    grad_out: Tensor,
    x: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Maybe,
) -> Three:
    """dx, dweight, dbias of torch's layer norm, from its saved statistics."""
    gamma = torch.ones(normalized_shape) if weight is None else weight
    shape = [*x.shape[: x.dim() - len(normalized_shape)], *[1] * len(normalized_shape)]
    dx, dgamma, dbeta = _layer_backward(
        working(grad_out),
        working(x),
        gamma,
        working(mean).reshape(shape),
        working(rstd).reshape(shape),
    )
    return dx.to(x.dtype), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)


def _group_statistics(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of every group, [N, groups]."""
    rows = working(x).reshape(x.shape[0], groups, -1)
    mean = rows.mean(-1)
    return mean, torch.rsqrt((rows - mean.unsqueeze(-1)).square().mean(-1) + eps)


def _group_swish(
    x: Tensor, groups: int, weight: Maybe, bias: Maybe, eps: float, scale: float
) -> Tensor:
    normal = F.group_norm(
        working(x),
        groups,
        None if weight is None else working(weight),
        None if bias is None else working(bias),
        eps,
    )
    return normal * torch.sigmoid(scale * normal)


@reference("npu_group_norm_silu", source=DOCS.format("npu_group_norm_silu"))
def npu_group_norm_silu(x: Tensor, weight: Maybe, bias: Maybe, group: int, eps: float) -> Three:
    """silu(group norm), mean and reciprocal deviation [N, group] in the weight's dtype."""
    mean, rstd = _group_statistics(x, group, eps)
    dtype = x.dtype if weight is None or bias is None else weight.dtype
    y = _group_swish(x, group, weight, bias, eps, 1.0)
    return y.to(x.dtype), mean.to(dtype), rstd.to(dtype)


@reference("npu_group_norm_swish", source=DOCS.format("npu_group_norm_swish"))
def npu_group_norm_swish(
    x: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float | None,
    swish_scale: float | None,
) -> Three:
    """z·sigmoid(swish_scale·z) of the group norm z, mean and reciprocal deviation."""
    epsilon, scale = 1e-5 if eps is None else eps, 1.0 if swish_scale is None else swish_scale
    mean, rstd = _group_statistics(x, num_groups, epsilon)
    y = _group_swish(x, num_groups, weight, bias, epsilon, scale)
    return y.to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


@reference("npu_group_norm_swish_grad", source=DOCS.format("npu_group_norm_swish"))
def npu_group_norm_swish_grad(given: ReferenceArguments) -> tuple[Maybe, ...]:
    """Gradients of input, weight and bias, from the saved statistics."""
    scale = 1.0 if given.swish_scale is None else given.swish_scale
    shape = (given.x.shape[0], given.num_groups, given.x.shape[1] // given.num_groups, -1)
    centre, factor = (working(value)[:, :, None, None] for value in (given.mean, given.rstd))
    normal = (working(given.x).reshape(shape) - centre) * factor
    gamma = working(given.weight).reshape(1, given.num_groups, -1, 1)
    z = normal * gamma + working(given.bias).reshape(1, given.num_groups, -1, 1)
    gate = torch.sigmoid(scale * z)
    dz = working(given.grad).reshape(shape) * (gate + scale * z * gate * (1 - gate))
    dn = dz * gamma
    average = dn.mean((2, 3), keepdim=True)
    slope = (dn * normal).mean((2, 3), keepdim=True)
    dx = (factor * (dn - average - normal * slope)).reshape(given.x.shape).to(given.x.dtype)
    dweight = (dz * normal).sum((0, 3)).reshape(-1).to(given.weight.dtype)
    found = (dx, dweight, dz.sum((0, 3)).reshape(-1).to(given.bias.dtype))
    return tuple(
        g if wanted else None for g, wanted in zip(found, given.grad_input_mask, strict=True)
    )
