"""Rounding to codes: int8 per output, int4 per group, and inputs per row or per layer."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.train.formats.stored_linears import Int4Linear, Int8Linear, pack

TINY = 1e-12


def int8_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 [N, K] and scales float32 [N], symmetric."""
    scale = (weight.abs().amax(1) / 127).clamp(min=TINY)
    return (weight / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scale


def int8_rounded(weight: Tensor) -> Tensor:
    """What int8 makes of a weight."""
    codes, scale = int8_weight(weight)
    return codes.float() * scale.unsqueeze(1)


def rows_rounded(x: Tensor) -> Tensor:
    """What dynamic int8 makes of inputs [T, K]: a scale per row."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=TINY)
    return (x / scale).round().clamp(-127, 127) * scale


def input_range(low: Tensor, high: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor | None]:
    """Scale [1] and offset [1] (None: zero) for inputs whose channels lie in low … high."""
    least, most = low.min().clamp(max=0), high.max().clamp(min=0)
    if symmetric:
        return (torch.maximum(-least, most) / 127).clamp(min=TINY).reshape(1), None
    scale = ((most - least) / 255).clamp(min=TINY)
    offset = (-128 - least / scale).round().clamp(-128, 127)
    return scale.reshape(1), offset.reshape(1)


def fixed_rounded(x: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """What static int8 makes of inputs."""
    shift = 0.0 if offset is None else offset
    return (((x / scale).round() + shift).clamp(-128, 127) - shift) * scale


def int4_scale(weight: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Scales [N, K / group] of codes -8 … 7 that span the largest weight, as `dtype` holds them."""
    largest = weight.view(weight.shape[0], -1, group).abs().amax(-1)
    return storable((largest / 7.5).clamp(min=TINY), dtype)


def storable(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales as they read back from a file in `dtype`."""
    least = torch.finfo(dtype).tiny
    return scale.clamp(min=least).to(dtype).float()


def int4_codes(weight: Tensor, scale: Tensor) -> Tensor:
    """Codes 0 … 15 [N, K]; 8 is zero."""
    apart = weight.view(*scale.shape, -1)
    codes = (apart / scale.unsqueeze(-1)).round().clamp(-8, 7) + 8
    return codes.view(weight.shape)


def int4_rounded(weight: Tensor, scale: Tensor) -> Tensor:
    """What int4 makes of a weight."""
    apart = int4_codes(weight, scale).view(*scale.shape, -1) - 8
    return (apart * scale.unsqueeze(-1)).view(weight.shape)


def int8_linear(weight: Tensor, bias: Tensor | None) -> Int8Linear:
    """A linear with dynamic inputs."""
    codes, scale = int8_weight(weight)
    return Int8Linear(codes, scale, bias)


def int4_linear(weight: Tensor, scale: Tensor, bias: Tensor | None) -> Int4Linear:
    """A linear of four bits."""
    return Int4Linear(pack(int4_codes(weight, scale)), scale, None, bias)
