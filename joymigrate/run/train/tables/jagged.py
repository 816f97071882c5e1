"""Values of different lengths: TorchRec's `JaggedTensor`.

Shapes: B sequences, T values in all. `values` [T, ...], `weights` [T] or None, `lengths` [B] and
`offsets` [B + 1].
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels.ops.jagged_padded import padded_gather

if TYPE_CHECKING:
    from typing_extensions import Self


def to_offsets(lengths: Tensor) -> Tensor:
    """Where each sequence starts, and the end of the last: [n] -> [n + 1]."""
    zero = lengths.new_zeros(1)
    return torch.cat((zero, lengths.cumsum(0).to(lengths.dtype)))


class Sequences:
    """`values` cut into n sequences by `lengths` [n] or `offsets` [n + 1]; of both kinds."""

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        if lengths is None and offsets is None:
            raise JoyError("a jagged tensor needs lengths or offsets", help="give one of the two")
        self._values, self._weights = values, weights
        self._lengths, self._offsets = lengths, offsets

    def device(self) -> torch.device:
        """Where the values are."""
        return self._values.device

    def values(self) -> Tensor:
        """[T, ...]"""
        return self._values

    def weights(self) -> Tensor:
        """[T]; an error without weights."""
        if self._weights is None:
            raise JoyError(
                "the batch has no weights",
                help="give weights=, or make the table is_weighted=False",
            )
        return self._weights

    def weights_or_none(self) -> Tensor | None:
        """[T], or None."""
        return self._weights

    def lengths(self) -> Tensor:
        """[n]"""
        if self._lengths is None:
            assert self._offsets is not None
            self._lengths = self._offsets.diff()
        return self._lengths

    def lengths_or_none(self) -> Tensor | None:
        """Lengths where they are known already."""
        return self._lengths

    def offsets(self) -> Tensor:
        """[n + 1]"""
        if self._offsets is None:
            assert self._lengths is not None
            self._offsets = to_offsets(self._lengths)
        return self._offsets

    def offsets_or_none(self) -> Tensor | None:
        """Offsets where they are known already."""
        return self._offsets

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with every tensor changed."""
        made = copy.copy(self)
        for name in ("_values", "_weights", "_lengths", "_offsets"):
            tensor = getattr(self, name)
            setattr(made, name, None if tensor is None else change(tensor))
        return made

    def pin_memory(self) -> Self:
        """The same in page-locked memory."""
        return self.each(lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that `stream` uses the tensors."""
        for item in (self._values, self._weights, self._lengths, self._offsets):
            if item is not None:
                item.record_stream(stream)


class JaggedTensor(Sequences):
    """Sequences of different lengths: `values` [T, ...] cut by `lengths` or `offsets` [B + 1]."""

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: torch.device | None = None,
        values_dtype: torch.dtype | None = None,
        weights_dtype: torch.dtype | None = None,
        lengths_dtype: torch.dtype = torch.int32,
    ) -> JaggedTensor:
        """No sequences."""
        weights = torch.empty(0, dtype=weights_dtype, device=device) if is_weighted else None
        lengths = torch.empty(0, dtype=lengths_dtype, device=device)
        return JaggedTensor(torch.empty(0, dtype=values_dtype, device=device), weights, lengths)

    @staticmethod
    def from_dense(values: list[Tensor], weights: list[Tensor] | None = None) -> JaggedTensor:
        """One sequence of each tensor."""
        lengths = torch.tensor([len(item) for item in values], device=values[0].device)
        return JaggedTensor(
            torch.cat(values), torch.cat(weights) if weights is not None else None, lengths
        )

    @staticmethod
    def from_dense_lengths(
        values: Tensor, lengths: Tensor, weights: Tensor | None = None
    ) -> JaggedTensor:
        """The first `lengths[b]` of each row of `values` [B, N, ...]."""
        mask = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
        kept = weights[mask] if weights is not None else None
        return JaggedTensor(values[mask], kept, lengths)

    def to_dense(self) -> list[Tensor]:
        """The sequences, a tensor each."""
        return list(torch.split(self.values(), self.lengths().tolist()))

    def to_dense_weights(self) -> list[Tensor] | None:
        """The weights of the sequences, or None."""
        if self._weights is None:
            return None
        return list(torch.split(self._weights, self.lengths().tolist()))

    def to_padded_dense(
        self, desired_length: int | None = None, padding_value: float = 0.0
    ) -> Tensor:
        """[B, desired_length, ...]; what is longer is cut off. Without a length: the longest."""
        return pad(self.values(), self.offsets(), desired_length, padding_value)

    def to_padded_dense_weights(
        self, desired_length: int | None = None, padding_value: float = 0.0
    ) -> Tensor:
        """The weights, as `to_padded_dense`."""
        return pad(self.weights(), self.offsets(), desired_length, padding_value)

    def to(self, device: torch.device, non_blocking: bool = False) -> JaggedTensor:
        """The same on another device."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def __repr__(self) -> str:
        return f"JaggedTensor({len(self.lengths())} sequences, {len(self._values)} values)"


def pad(values: Tensor, offsets: Tensor, length: int | None, fill: float) -> Tensor:
    """The registry's `jagged_to_padded`; without a length up to the longest sequence.

    Whole numbers are moved by its gather: the kernels are of floats.
    """
    if length is None:
        longest = offsets.diff()
        length = int(longest.max()) if len(longest) else 0
    if not values.is_floating_point():
        return padded_gather(values, offsets, length, fill=int(fill))
    padded: Tensor = kernels.op("jagged_to_padded")(values, offsets, length, fill=fill)
    return padded
