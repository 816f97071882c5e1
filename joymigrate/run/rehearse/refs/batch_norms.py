"""Batch normalisation in parts, as synchronised batch norm uses it across ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import working

SOURCE = "torch native_functions.yaml, op-plugin aclops/BatchNorm*KernelNpu.cpp"
Maybe = Tensor | None


def _spread(factor: Tensor, like: Tensor) -> Tensor:
    """A value per channel, broadcastable over [N, C, …]."""
    return working(factor).reshape(1, -1, *[1] * (like.dim() - 2))


def _over_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


@reference("aten::batch_norm_stats", source=SOURCE)
def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of every channel."""
    wide, axes = working(x), _over_channels(x)
    variance = wide.var(axes, unbiased=False)
    return wide.mean(axes), torch.rsqrt(variance + eps)


@reference("aten::batch_norm_elemt", source=SOURCE)
def batch_norm_elemt(x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, invstd: Tensor) -> Tensor:
    found = (working(x) - _spread(mean, x)) * _spread(invstd, x)
    if weight is not None:
        found = found * _spread(weight, x)
    if bias is not None:
        found = found + _spread(bias, x)
    return found.to(x.dtype)


@reference("aten::batch_norm_backward_reduce", source=SOURCE)
def batch_norm_backward_reduce(given: ReferenceArguments) -> tuple[Maybe, Maybe, Maybe, Maybe]:
    """Σ dy, Σ dy·(x - mean), and the gradients of weight and bias."""
    axes = _over_channels(given.x)
    dy = working(given.grad_out)
    total, moment = dy.sum(axes), (dy * (working(given.x) - _spread(given.mean, given.x))).sum(axes)
    dtype = total.dtype if given.weight is None else given.weight.dtype
    return (
        total if given.input_g else None,
        moment if given.input_g else None,
        (moment * working(given.invstd)).to(dtype) if given.weight_g else None,
        total.to(dtype) if given.bias_g else None,
    )


@reference("aten::batch_norm_backward_elemt", source=SOURCE)
def batch_norm_backward_elemt(
    grad_out: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Maybe,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    number = working(count).sum()
    scale = _spread(invstd, x) if weight is None else _spread(invstd, x) * _spread(weight, x)
    centred = (working(x) - _spread(mean, x)) * _spread(invstd, x).square()
    average = _spread(sum_dy, x) / number
    found = working(grad_out) - average - centred * _spread(sum_dy_xmu, x) / number
    return (found * scale).to(x.dtype)


def gather_statistics(
    mean: Tensor,
    invstd: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Statistics of all ranks from those of each ([ranks, C]); running ones updated in place."""
    weights = working(counts).reshape(-1, 1)
    total = weights.sum()
    means, variances = working(mean), working(invstd).pow(-2) - eps
    overall = (means * weights).sum(0) / total
    spread = ((variances + (means - overall).square()) * weights).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(overall.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = (spread / (total - 1)).to(running_var.dtype)
        running_var.mul_(1 - momentum).add_(unbiased, alpha=momentum)
    return overall, torch.rsqrt(spread / total + eps)


@reference("aten::batch_norm_gather_stats_with_counts", source=SOURCE)
def batch_norm_gather_stats_with_counts(
    mean: Tensor,
    invstd: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    return gather_statistics(mean, invstd, running_mean, running_var, momentum, eps, counts)


@reference("batch_norm_reduce", source="op-plugin BatchNormReduceKernelNpuOpApi.cpp")
def batch_norm_reduce(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares of every channel, float32."""
    wide, axes = working(x), _over_channels(x)
    return wide.sum(axes).float(), wide.square().sum(axes).float()


@reference("batch_norm_gather_stats_update", source="op-plugin BatchNormGatherStatsUpdateKernelNpu")
def batch_norm_gather_stats_update(
    mean: Tensor,
    invstd: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """As above, but `mean` and `invstd` hold each rank's sum and sum of squares."""
    weights = working(counts).reshape(-1, 1)
    means = working(mean) / weights
    variances = working(invstd) / weights - means.square()
    reciprocal = torch.rsqrt(variances + eps)
    return gather_statistics(means, reciprocal, running_mean, running_var, momentum, eps, counts)
