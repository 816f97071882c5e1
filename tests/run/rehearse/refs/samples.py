"""One call or more of every reference: what the shape, dtype and device tests run.

`SAMPLES[name]` is a list of (args, kwargs). Values come from a seeded generator, so that every
process sees the same ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Call = tuple[tuple[Any, ...], dict[str, Any]]
GEN = torch.Generator().manual_seed(20260101)


def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=GEN).to(dtype)


def p(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Positive numbers in [0.5, 1.5]."""
    return (torch.rand(shape, generator=GEN) + 0.5).to(dtype)


def i(high: int, *shape: int, dtype: torch.dtype = torch.int64, low: int = 0) -> Tensor:
    """Integers in [low, high)."""
    return torch.randint(low, high, shape, generator=GEN).to(dtype)


def b(*shape: int) -> Tensor:
    return torch.rand(shape, generator=GEN) < 0.3


HALF = torch.float16
BF16 = torch.bfloat16
CAUSAL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)

SAMPLES: dict[str, list[Call]] = {}


def add(name: str, *args: Any, **kwargs: Any) -> None:
    full = name if "::" in name else f"npu::{name}"
    SAMPLES.setdefault(full, []).append((args, kwargs))
