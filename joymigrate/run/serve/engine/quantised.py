"""Quantised linears of the engine: what a format's reader found, computed by the kernels.

Linears of one input are one product where they are quantised alike; else they are computed one by
one and their outputs put in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run import kernels
from joymigrate.run.serve.engine.linear import Linear, QuantisedWeight
from joymigrate.run.serve.engine.weights import Weights
from joymigrate.run.train.formats.open import QuantisedReader, open_quantised
from joymigrate.run.train.formats.stored_linears import NIBBLES, Int8Linear, join_linears
from joymigrate.run.train.formats.stored_linears import Linear as Stored


def quantised_reader(folder: Path, weights: Weights) -> Engaged | None:
    """The reader of a folder's quantised weights, None where they are plain. Raises `JoyError`
    for formats that are not read."""
    found = open_quantised(folder, weights)
    return None if found is None else Engaged(found, weights)


class Engaged:
    """A `QuantisedReader` of linear.py."""

    def __init__(self, reader: QuantisedReader, weights: Weights) -> None:
        self.reader = reader
        self.weights = weights
        self.scheme = f"{reader.scheme} ({reader.format})"

    def stored(self, names: Sequence[str]) -> QuantisedWeight | None:
        """The linears of these names as one; None when none of them is quantised."""
        found = [self.reader.linear(name) for name in names]
        whole = [part for part in found if part is not None]
        if not whole:
            return None
        one = join_linears(whole) if len(whole) == len(found) else None
        if one is not None:
            return One(one)
        return LinearRow(tuple(self.part(*pair) for pair in zip(names, found, strict=True)))

    def part(self, name: str, stored: Stored | None) -> One | Wide:
        """One of several linears that do not go together."""
        if stored is not None:
            return One(stored)
        weight = self.weights.raw(f"{name}.weight")
        return Wide(weight, self.weights.maybe(f"{name}.bias"))

    def numbers(self, name: str, tensor: Tensor) -> int:
        """How many weights of the model a tensor on disk holds: none in scales and the like."""
        if name.endswith(".weight_packed"):
            return tensor.numel() * NIBBLES
        return tensor.numel() if name.endswith((".weight", ".bias")) else 0


@dataclass(frozen=True, slots=True)
class One:
    """Linears that are one product."""

    stored: Stored

    def rows(self, order: Tensor) -> One:
        """The layer with its outputs picked, and ordered, by `order`."""
        return One(self.stored.rows(order))

    def columns(self, first: int, last: int) -> One:
        """The layer of the inputs first … last alone, without bias."""
        return One(self.stored.columns(first, last))

    def linear(self, dtype: torch.dtype, device: torch.device) -> Linear:
        """The layer that computes in `dtype`."""
        eight = isinstance(self.stored, Int8Linear)
        kind = ("w8a8", "quant_matmul") if eight else ("w4a16", "int4_matmul")
        return KernelLinear(*kind, weight_of(self.stored).placed(lambda tensor: tensor.to(device)))


@dataclass(frozen=True, slots=True)
class Wide:
    """A plain linear among quantised ones."""

    weight: Tensor
    bias: Tensor | None

    def columns(self, first: int, last: int) -> Wide:
        """The layer of the inputs first … last alone, without bias."""
        return Wide(self.weight[:, first:last], None)

    def linear(self, dtype: torch.dtype, device: torch.device) -> Linear:
        """The layer that computes in `dtype`."""
        weight = self.weight.to(device, dtype).contiguous()
        bias = None if self.bias is None else self.bias.to(device, dtype)
        return lambda x: F.linear(x, weight, bias)


@dataclass(frozen=True, slots=True)
class LinearRow:
    """Linears of one input that are computed one by one; `order` picks among all outputs."""

    parts: tuple[One | Wide, ...]
    order: Tensor | None = None

    def rows(self, order: Tensor) -> LinearRow:
        """The layers with their outputs picked, and ordered, by `order`."""
        return replace(self, order=order if self.order is None else self.order[order])

    def columns(self, first: int, last: int) -> LinearRow:
        """The layers of the inputs first … last alone, without bias."""
        return replace(self, parts=tuple(part.columns(first, last) for part in self.parts))

    def linear(self, dtype: torch.dtype, device: torch.device) -> Linear:
        """The layer that computes in `dtype`."""
        linears = [part.linear(dtype, device) for part in self.parts]
        order = None if self.order is None else self.order.to(device)
        return StackedLinears(linears, order)


class KernelLinear:
    """A quantised linear as the kernel of its format computes it."""

    def __init__(self, kind: str, operator: str, weight: Any) -> None:
        self.kind, self.weight = kind, weight
        self.multiply = kernels.op(operator)

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight)  # type: ignore[no-any-return]


class StackedLinears:
    """Outputs of several linears, one after the other."""

    def __init__(self, linears: Sequence[Linear], order: Tensor | None) -> None:
        self.linears = linears
        self.order = order
        kinds = dict.fromkeys(getattr(item, "kind", "plain") for item in linears)
        self.kind = " + ".join(kinds)

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.cat([linear(x) for linear in self.linears], -1)
        return y if self.order is None else y[..., self.order]


def weight_of(stored: Stored) -> Any:
    """The kernels' form of a stored linear."""
    if isinstance(stored, Int8Linear):
        return kernels.Int8Weight(
            stored.values, stored.scale, stored.bias, stored.x_scale, stored.x_offset
        )
    return kernels.Int4Weight(stored.values, stored.scale, stored.zero, stored.bias)
