"""Number formats of the chip's matrix unit, and faults put in on purpose.

HF32 keeps 11 bits of the mantissa on 910B and its siblings, 10 on 950, rounded to the nearest and
ties away from zero: the vendor's public tests compute it so (ops-nn, conv/conv2d_v2/tests/assets/
golden.py). It was not measured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HF32_DROPPED_BITS = 12
HF32_DROPPED_BITS_950 = 13


def hf32_dropped_bits(soc: str) -> int:
    """Bits of float32's mantissa that HF32 leaves out on a model."""
    return HF32_DROPPED_BITS_950 if soc.startswith("Ascend950") else HF32_DROPPED_BITS


def to_hf32(tensor: Tensor, dropped: int = HF32_DROPPED_BITS) -> Tensor:
    """float32 values as HF32 holds them, kept as float32."""
    bits = tensor.contiguous().view(torch.int32) + (1 << (dropped - 1))
    kept = bits & ~((1 << dropped) - 1)
    return torch.where(torch.isfinite(tensor), kept.view(torch.float32), tensor)


def degrade(value: Any, precision: str, dropped: int = HF32_DROPPED_BITS) -> Any:
    """A float32 input as the matrix unit sees it under `precision`; anything else unchanged."""
    if not isinstance(value, Tensor) or value.dtype is not torch.float32:
        return value
    if precision == "hf32":
        return to_hf32(value, dropped)
    short = torch.bfloat16 if precision == "bf16" else torch.float16
    return value.to(short).to(torch.float32)


def inject(result: Any, error: float) -> Any:
    """The result of a faulty operator: its first floating-point tensor off by a relative error."""
    if isinstance(result, Tensor):
        return result * (1 + error) if result.is_floating_point() else result
    if isinstance(result, (tuple, list)) and result:
        return type(result)([inject(result[0], error), *result[1:]])
    return result
