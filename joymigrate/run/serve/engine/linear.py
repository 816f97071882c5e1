"""Linear layers: plain, reordered once for the CPU, or quantised by a loader of weight formats.

A linear is a callable `[rows, in] -> [rows, out]`. Reordering uses oneDNN operators that torch does
not promise; each layer is compared with the plain product when it is made, and stays plain when
they differ or are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.serve.engine.weights import Weights

Linear = Callable[[Tensor], Tensor]


@dataclass(slots=True, eq=False)
class PlainLinear:
    """y = x·Wᵀ + b."""

    kind: ClassVar[str] = "plain"
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Prepacked:
    """y = x·Wᵀ + b with the weight in the order that oneDNN multiplies fastest."""

    kind = "prepacked"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = bias
        self.multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


class QuantisedWeight(Protocol):
    """A quantised linear's stored form, as a reader of a weight format gives it."""

    def linear(self, dtype: torch.dtype, device: torch.device) -> Linear:
        """The layer that computes in `dtype`."""
        ...

    def rows(self, order: Tensor) -> QuantisedWeight:
        """The layer with its outputs picked, and ordered, by `order`."""
        ...

    def columns(self, first: int, last: int) -> QuantisedWeight:
        """The layer of the inputs first … last alone, without bias."""
        ...


class QuantisedSource(Protocol):
    """Finds quantised linears in a model folder (`joymigrate.run.train.formats`)."""

    scheme: str

    def stored(self, names: Sequence[str]) -> QuantisedWeight | None:
        """The linears of these names (without `.weight`) as one, their outputs one after the
        other; None when they are not quantised."""
        ...

    def numbers(self, name: str, tensor: Tensor) -> int:
        """How many numbers of the model a tensor on disk stands for."""
        ...


def dense(weight: Tensor, bias: Tensor | None, *, prepack: bool) -> Linear:
    """A linear with unquantised weights, the fastest one that computes the same here."""
    wanted = prepack and weight.device.type == "cpu" and weight.dtype is torch.bfloat16
    if wanted:
        made = try_prepacked(weight, bias)
        if made is not None:
            return made
    return PlainLinear(weight.contiguous(), bias)


def try_prepacked(weight: Tensor, bias: Tensor | None) -> Prepacked | None:
    """The reordered linear, when this torch has it and it agrees with the plain product."""
    try:
        made = Prepacked(weight, bias)
        return made if agrees(made, weight, bias) else None
    except (RuntimeError, AttributeError, NotImplementedError):
        return None


def agrees(made: Linear, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a layer gives what the plain product gives, for one row and for several."""
    source = torch.Generator().manual_seed(0)
    for rows in (1, 3):
        x = torch.randn(rows, weight.shape[1], generator=source).to(weight.dtype)
        want, got = F.linear(x, weight, bias).float(), made(x).float()
        # bfloat16 keeps 8 bits: two roundings of the largest element
        if not torch.allclose(got, want, rtol=2e-2, atol=2e-2 * float(want.abs().max())):
            return False
    return True


@dataclass(slots=True)
class LinearMaker:
    """Makes linears from a folder's weights, for one dtype, device and share of the heads."""

    weights: Weights
    dtype: torch.dtype
    device: torch.device
    prepack: bool = True
    reader: QuantisedSource | None = None
    kinds: set[str] = field(default_factory=set)

    def __call__(
        self,
        names: Sequence[str],
        *,
        rows: Tensor | None = None,
        columns: tuple[int, int] | None = None,
        bias: bool = True,
    ) -> Linear:
        """One linear of several, their outputs in a row; `names` without `.weight`.

        `rows` picks and orders the outputs; `columns` keeps a range of the inputs (for a share of
        a row-parallel layer, whose bias only the first share adds: `bias`).
        """
        made = self.quantised(names, rows, columns)
        if made is None:
            weight, offset = self.stacked(names)
            if rows is not None:
                weight, offset = weight[rows], None if offset is None else offset[rows]
            if columns is not None:
                weight = weight[:, columns[0] : columns[1]]
            offset = offset if bias else None
            made = dense(
                weight.to(self.device),
                None if offset is None else offset.to(self.device),
                prepack=self.prepack,
            )
        self.kinds.add(getattr(made, "kind", type(made).__name__))
        return made

    def quantised(
        self, names: Sequence[str], rows: Tensor | None, columns: tuple[int, int] | None
    ) -> Linear | None:
        """The quantised form, where the folder has one."""
        stored = self.reader.stored(names) if self.reader is not None else None
        if stored is None:
            return None
        if rows is not None:
            stored = stored.rows(rows)
        if columns is not None:
            stored = stored.columns(*columns)
        return stored.linear(self.dtype, self.device)

    def stacked(self, names: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of several linears, one after the other."""
        parts = [self.weights.get(f"{name}.weight", self.dtype) for name in names]
        offsets = [self.weights.maybe(f"{name}.bias", self.dtype) for name in names]
        weight = parts[0] if len(parts) == 1 else torch.cat(parts)
        if all(offset is None for offset in offsets):
            return weight, None
        filled = [
            part.new_zeros(part.shape[0]) if offset is None else offset
            for part, offset in zip(parts, offsets, strict=True)
        ]
        return weight, torch.cat(filled)
