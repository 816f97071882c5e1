"""Fake quantisation for quantisation-aware training, and products of small whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import fill

# Products of int8 summed over this many terms stay below 2^24, which float32 holds exactly.
EXACT_TERMS = 512


def round_steps(x: Tensor, scale: Tensor | float, zero_point: Tensor | float) -> Tensor:
    """x in steps of `scale`, before it is held within the quantised range."""
    return torch.round(x.to(torch.float32) * (1.0 / scale) + zero_point)


def fake(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | float, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """x as it comes back from the quantised range, and where it was inside."""
    steps = round_steps(x, scale, zero_point)
    inside = (steps >= low) & (steps <= high)
    return ((steps.clamp(low, high) - zero_point) * scale).to(x.dtype), inside


def along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """One value per channel in x's number of dimensions."""
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


@fill("fake_quantize_per_tensor_affine_cachemask", rtol=0, atol=1e-6)
def per_tensor(
    x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Fake quantisation with one scale, and its mask."""
    return fake(x, scale, zero_point, quant_min, quant_max)


@fill("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", rtol=0, atol=1e-6)
def per_tensor_of_tensors(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    fake_quant_enabled: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    """The same with scale, zero point and switch on the device."""
    found, inside = fake(x, scale, zero_point, quant_min, quant_max)
    on = fake_quant_enabled != 0
    return torch.where(on, found, x), inside | ~on


@fill("fake_quantize_per_channel_affine_cachemask", rtol=0, atol=1e-6)
def per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Fake quantisation with a scale per channel, and its mask."""
    return fake(x, along(scale, x, axis), along(zero_point, x, axis), quant_min, quant_max)


def learnable_point(zero_point: Tensor, low: int, high: int) -> Tensor:
    """A zero point that is being learnt, as the whole number it stands for."""
    return torch.round(zero_point).clamp(low, high)


@fill("_fake_quantize_learnable_per_tensor_affine", rtol=0, atol=1e-6)
def learnable_per_tensor(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """Fake quantisation whose scale and zero point are being learnt."""
    point = learnable_point(zero_point, quant_min, quant_max)
    return fake(x, scale, point, quant_min, quant_max)[0]


@fill("_fake_quantize_learnable_per_channel_affine", rtol=0, atol=1e-6)
def learnable_per_channel(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """The same with a scale per channel."""
    point = along(learnable_point(zero_point, quant_min, quant_max), x, axis)
    return fake(x, along(scale, x, axis), point, quant_min, quant_max)[0]


def learnable_gradients(
    grad: Tensor, x: Tensor, scale: Tensor, point: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, scale and zero point, element by element (Esser et al., 2020)."""
    steps = round_steps(x, scale, point)
    inside = ((steps >= low) & (steps <= high)).to(grad.dtype)
    held = steps.clamp(low, high)
    slope = (held - point) - inside * x / scale
    return grad * inside, grad * slope, -grad * (1 - inside) * scale


@fill("_fake_quantize_learnable_per_tensor_affine_backward", rtol=1e-5, atol=1e-5)
def learnable_per_tensor_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, scale and zero point."""
    point = learnable_point(zero_point, quant_min, quant_max)
    dx, ds, dz = learnable_gradients(grad, x, scale, point, quant_min, quant_max)
    return dx, (ds.sum() * grad_factor).reshape(1), (dz.sum() * grad_factor).reshape(1)


@fill("_fake_quantize_learnable_per_channel_affine_backward", rtol=1e-5, atol=1e-5)
def learnable_per_channel_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, summed per channel."""
    point = along(learnable_point(zero_point, quant_min, quant_max), x, axis)
    dx, ds, dz = learnable_gradients(grad, x, along(scale, x, axis), point, quant_min, quant_max)
    others = [d for d in range(x.dim()) if d != axis % x.dim()]
    if others:
        ds, dz = ds.sum(others), dz.sum(others)
    return dx, ds * grad_factor, dz * grad_factor


@fill("_int_mm _int_mm.out", rtol=0, atol=0)
def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """int8 times int8 summed in int32, exactly: in pieces that float32 holds."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.int32, device=a.device)
    for first in range(0, a.shape[1], EXACT_TERMS):
        size = min(EXACT_TERMS, a.shape[1] - first)
        left = a.narrow(1, first, size).to(torch.float32)
        total = total + (left @ b.narrow(0, first, size).to(torch.float32)).to(torch.int32)
    return total


@fill("_weight_int8pack_mm", rtol=5e-5, atol=1e-5)
def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x times an int8 weight of (rows out, columns in), each row with a scale."""
    return (x @ weight.to(x.dtype).t()) * scales
