"""Formulas that vendors have functions of their own for, for comparison in float64.

A line of a chip's kit.yaml names one as its `reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + epsilon) * gamma, and the factor."""
    factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
    return x * factor * gamma, factor


def add_rms_norm(
    first: Tensor, second: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """rms_norm of a sum; the factor; the sum."""
    total = first + second
    result, factor = rms_norm(total, gamma, epsilon)
    return result, factor, total


def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + rotate_half(x) * sin."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """silu of the first half times the second."""
    first, second = x.chunk(2, dim=dim)
    return functional.silu(first) * second


def fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, scale: float = 1.0
) -> tuple[Tensor]:
    """softmax(q k^T scale) v; layout BNSD or BSH."""
    if input_layout == "BSH":
        batch, length, hidden = query.shape
        shape = (batch, -1, head_num, hidden // head_num)
        heads = [one.reshape(shape).transpose(1, 2) for one in (query, key, value)]
        out = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], scale=scale)
        return (out.transpose(1, 2).reshape(batch, length, hidden),)
    return (functional.scaled_dot_product_attention(query, key, value, scale=scale),)


REFERENCES: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "rotary_mul": rotary_mul,
    "swiglu": swiglu,
    "fusion_attention": fusion_attention,
}
