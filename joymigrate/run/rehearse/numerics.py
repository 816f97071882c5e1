"""Number formats of the chip's matrix unit, and faults put in on purpose.

HF32 is modelled as 11 explicit mantissa bits, rounded to nearest even. That is our reading of the
public descriptions, not a measurement.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HF32_DROPPED_BITS = 12


def to_hf32(tensor: Tensor) -> Tensor:
    """float32 values rounded to 11 mantissa bits, kept as float32."""
    bits = tensor.contiguous().view(torch.int32)
    half = (1 << (HF32_DROPPED_BITS - 1)) - 1
    rounded = bits + half + ((bits >> HF32_DROPPED_BITS) & 1)
    rounded &= ~((1 << HF32_DROPPED_BITS) - 1)
    return torch.where(torch.isfinite(tensor), rounded.view(torch.float32), tensor)


def degrade(value: Any, precision: str) -> Any:
    """A float32 input as the matrix unit sees it under `precision`; anything else unchanged."""
    if not isinstance(value, Tensor) or value.dtype is not torch.float32:
        return value
    if precision == "hf32":
        return to_hf32(value)
    short = torch.bfloat16 if precision == "bf16" else torch.float16
    return value.to(short).to(torch.float32)


def inject(result: Any, error: float) -> Any:
    """The result of a faulty operator: its first floating-point tensor off by a relative error."""
    if isinstance(result, Tensor):
        return result * (1 + error) if result.is_floating_point() else result
    if isinstance(result, (tuple, list)) and result:
        return type(result)([inject(result[0], error), *result[1:]])
    return result
