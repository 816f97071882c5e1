"""Weights of linear layers as kernels want them: dense, int8 or int4, packed once when first used.

The forms on disk stay elsewhere; these hold plain tensors (`values`, `scale`, …) and, beside them,
what an implementation made of them (`packed`), which never leaves the process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError

NIBBLES = 8  # int4 values in one int32


@dataclass(slots=True, eq=False)
class DenseWeight:
    """`values` [N, K] of a layer y = x valuesᵀ + bias.

    With `drop`, the values are given up once an implementation has packed them, so that memory
    holds one copy; another implementation can't take over from then on.
    """

    values: Tensor | None
    bias: Tensor | None = None
    drop: bool = False
    packed: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.values is not None:
            self.shape = (self.values.shape[0], self.values.shape[1])

    def dense(self) -> Tensor:
        """The plain weight."""
        if self.values is None:
            raise JoyError(
                "the plain weight was given up when it was packed", help="DenseWeight(drop=False)"
            )
        return self.values

    def placed(self, place: Callable[[Tensor], Tensor]) -> DenseWeight:
        """The same elsewhere, not packed."""
        bias = None if self.bias is None else place(self.bias)
        return DenseWeight(place(self.dense()), bias, self.drop)


@dataclass(slots=True, eq=False)
class Int8Weight:
    """W8A8: `values` int8 [N, K], `scale` float32 [N], and how activations are quantised.

    Without `x_scale` each row of the input gets its own scale (dynamic). With it (float32 [1]) all
    share one, and `x_offset` (float32 [1]) is the code of zero: q = round(x / x_scale) + x_offset.
    """

    values: Tensor
    scale: Tensor
    bias: Tensor | None = None
    x_scale: Tensor | None = None
    x_offset: Tensor | None = None
    packed: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1]

    def placed(self, place: Callable[[Tensor], Tensor]) -> Int8Weight:
        """The same elsewhere. Scales stay float32."""
        values = place(self.values)
        return Int8Weight(
            values,
            self.scale.to(values.device),
            bias=move_beside(self.bias, values),
            x_scale=move_beside(self.x_scale, values),
            x_offset=move_beside(self.x_offset, values),
        )


@dataclass(slots=True, eq=False)
class Int4Weight:
    """W4A16: `values` int32 [N, K / 8], eight codes 0 … 15 in each, the first in the lowest bits.

    `scale` [N, K / group]; `zero` [N, K / group] are the codes of zero (8 everywhere when None):
    weight = (code - zero) · scale. This is the layout of "pack-quantized" checkpoints.
    """

    values: Tensor
    scale: Tensor
    zero: Tensor | None = None
    bias: Tensor | None = None
    packed: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1] * NIBBLES

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.scale.shape[1]

    def codes(self) -> Tensor:
        """int32 [N, K], each 0 … 15."""
        shifts = torch.arange(NIBBLES, dtype=torch.int32, device=self.values.device) * 4
        found = (self.values.unsqueeze(-1) >> shifts) & 15
        return found.flatten(1).to(torch.int32)

    def zeros(self) -> Tensor:
        """The codes of zero, float32 [N, K / group]."""
        if self.zero is None:
            return torch.full_like(self.scale, 8.0, dtype=torch.float32)
        return self.zero.float()

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K] in a float dtype."""
        rows, group = self.shape[0], self.group
        codes = self.codes().view(rows, -1, group).to(torch.float32)
        wide = (codes - self.zeros().unsqueeze(-1)) * self.scale.to(torch.float32).unsqueeze(-1)
        return wide.view(rows, -1).to(dtype)

    def placed(self, place: Callable[[Tensor], Tensor]) -> Int4Weight:
        """The same elsewhere. Scales stay float32."""
        values = place(self.values)
        scale = self.scale.to(values.device)
        return Int4Weight(
            values, scale, move_beside(self.zero, values), move_beside(self.bias, values)
        )

    @staticmethod
    def pack(codes: Tensor) -> Tensor:
        """int codes [N, K] in 0 … 15 → int32 [N, K / 8]."""
        shifts = torch.arange(NIBBLES, dtype=torch.int64, device=codes.device) * 4
        grouped = codes.to(torch.int64).view(codes.shape[0], -1, NIBBLES) << shifts
        wide = grouped.sum(-1)
        return torch.where(wide >= 1 << 31, wide - (1 << 32), wide).to(torch.int32)


def move_beside(item: Tensor | None, beside: Tensor) -> Tensor | None:
    """A float32 tensor on the device of another."""
    return None if item is None else item.to(torch.float32).to(beside.device)


def remember(weight: Any, name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, made once for this weight."""
    if name not in weight.packed:
        weight.packed[name] = make()
    return weight.packed[name]
