"""Quantised linears as they are stored: codes, scales, and how the input is quantised.

N are outputs, K inputs. The forms hold plain tensors and compute nothing but their own weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from joymigrate.errors import JoyError

NIBBLES = 8  # codes of four bits in an int32


@dataclass(frozen=True, slots=True, eq=False)
class Int8Linear:
    """W8A8: `values` int8 [N, K]; weight = values · scale, scale float32 [N].

    Without `x_scale` every row of the input has a scale of its own (dynamic); with it (float32
    [1]) all share it, and `x_offset` (float32 [1]) is the code of zero:
    q = round(x / x_scale) + x_offset.
    """

    values: Tensor
    scale: Tensor
    bias: Tensor | None = None
    x_scale: Tensor | None = None
    x_offset: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1]

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [N, K] that the codes stand for."""
        return (self.values.float() * self.scale.unsqueeze(-1)).to(dtype)

    def rows(self, order: Tensor) -> Int8Linear:
        """The layer with its outputs picked, and ordered, by `order`."""
        bias = None if self.bias is None else self.bias[order]
        return replace(self, values=self.values[order], scale=self.scale[order], bias=bias)

    def columns(self, first: int, last: int) -> Int8Linear:
        """The layer of the inputs first … last alone, without bias."""
        return replace(self, values=self.values[:, first:last].contiguous(), bias=None)


@dataclass(frozen=True, slots=True, eq=False)
class Int4Linear:
    """W4A16: `values` int32 [N, K / 8], eight codes 0 … 15 each, the first in the lowest bits.

    weight = (code - zero) · scale with scale and zero float32 [N, K / group]; without `zero` the
    code of zero is 8.
    """

    values: Tensor
    scale: Tensor
    zero: Tensor | None = None
    bias: Tensor | None = None

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
        return unpack(self.values)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [N, K] that the codes stand for."""
        rows, inputs = self.shape
        codes = self.codes().view(rows, -1, self.group).float()
        zero = 8.0 if self.zero is None else self.zero.unsqueeze(-1)
        return ((codes - zero) * self.scale.unsqueeze(-1)).view(rows, inputs).to(dtype)

    def rows(self, order: Tensor) -> Int4Linear:
        """The layer with its outputs picked, and ordered, by `order`."""
        return Int4Linear(
            self.values[order],
            self.scale[order],
            None if self.zero is None else self.zero[order],
            None if self.bias is None else self.bias[order],
        )

    def columns(self, first: int, last: int) -> Int4Linear:
        """The layer of the inputs first … last alone, without bias; on the borders of groups."""
        if first % self.group or last % self.group:
            raise JoyError(
                f"inputs {first} to {last} do not fall on groups of {self.group}",
                help="a smaller --tensor-parallel, or weights quantised with a smaller --group",
            )
        groups = slice(first // self.group, last // self.group)
        return Int4Linear(
            self.values[:, first // NIBBLES : last // NIBBLES].contiguous(),
            self.scale[:, groups].contiguous(),
            None if self.zero is None else self.zero[:, groups].contiguous(),
        )


Linear = Int8Linear | Int4Linear


def pack(codes: Tensor) -> Tensor:
    """Codes 0 … 15 [..., n·8] as int32 [..., n], the first in the lowest bits."""
    shifts = torch.arange(NIBBLES, dtype=torch.int64, device=codes.device) * 4
    wide = (codes.to(torch.int64).reshape(*codes.shape[:-1], -1, NIBBLES) << shifts).sum(-1)
    return torch.where(wide >= 1 << 31, wide - (1 << 32), wide).to(torch.int32)


def unpack(values: Tensor) -> Tensor:
    """int32 [..., n] as codes 0 … 15, int32 [..., n·8]."""
    shifts = torch.arange(NIBBLES, dtype=torch.int32, device=values.device) * 4
    return ((values.unsqueeze(-1) >> shifts) & 15).flatten(-2)


def join_linears(parts: list[Linear]) -> Linear | None:
    """Several linears of one input as one, their outputs one after the other; None where they are
    of different kinds or quantise the input differently."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if all(isinstance(part, Int8Linear) for part in parts):
        return joined_int8([part for part in parts if isinstance(part, Int8Linear)])
    fours = [part for part in parts if isinstance(part, Int4Linear)]
    if len(fours) < len(parts) or any(part.group != fours[0].group for part in fours):
        return None
    zeros = None
    if any(part.zero is not None for part in fours):
        zeros = torch.cat(
            [torch.full_like(p.scale, 8.0) if p.zero is None else p.zero for p in fours]
        )
    values, scale = torch.cat([p.values for p in fours]), torch.cat([p.scale for p in fours])
    return Int4Linear(values, scale, zeros, biases(parts))


def joined_int8(parts: list[Int8Linear]) -> Int8Linear | None:
    """Int8 linears as one, where all quantise the input alike."""
    first = parts[0]
    for part in parts[1:]:
        if not (same(part.x_scale, first.x_scale) and same(part.x_offset, first.x_offset)):
            return None
    return Int8Linear(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scale for part in parts]),
        biases(list(parts)),
        first.x_scale,
        first.x_offset,
    )


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both are missing, or equal."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def biases(parts: list[Linear]) -> Tensor | None:
    """The biases one after the other, zeros where there is none; None when no part has one."""
    if all(part.bias is None for part in parts):
        return None
    return torch.cat([torch.zeros(p.shape[0]) if p.bias is None else p.bias for p in parts])
