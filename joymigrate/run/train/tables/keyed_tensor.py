"""TorchRec's `KeyedTensor`: dense blocks of columns by key."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError, did_you_mean


class KeyedTensor:
    """One dense block of columns for each key: `values` [B, sum of `length_per_key`]."""

    def __init__(
        self,
        keys: list[str],
        length_per_key: list[int],
        values: Tensor,
        key_dim: int = 1,
        offset_per_key: list[int] | None = None,
        index_per_key: dict[str, int] | None = None,
    ) -> None:
        self._keys, self._length_per_key = list(keys), list(length_per_key)
        self._values, self._key_dim = values, key_dim

    @staticmethod
    def from_tensor_list(
        keys: list[str], tensors: list[Tensor], key_dim: int = 1, cat_dim: int = 1
    ) -> KeyedTensor:
        """A block of each tensor."""
        lengths = [item.shape[key_dim] for item in tensors]
        return KeyedTensor(keys, lengths, torch.cat(tensors, cat_dim), key_dim)

    def keys(self) -> list[str]:
        """Names of the blocks."""
        return self._keys

    def values(self) -> Tensor:
        """All blocks side by side."""
        return self._values

    def key_dim(self) -> int:
        """The axis along which the blocks stand."""
        return self._key_dim

    def device(self) -> torch.device:
        """Where the values are."""
        return self._values.device

    def length_per_key(self) -> list[int]:
        """Number of columns of each key."""
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Where each key's columns start, and the end of the last. [F + 1]"""
        return [0, *accumulate(self._length_per_key)]

    def __getitem__(self, key: str) -> Tensor:
        """The block of one key."""
        if key not in self._keys:
            raise JoyError(
                f"there is no key '{key}'.{did_you_mean(key, self._keys)}",
                help=f"the keys are {', '.join(self._keys)}",
            )
        number = self._keys.index(key)
        start = self.offset_per_key()[number]
        return self._values.narrow(self._key_dim, start, self._length_per_key[number])

    def to_dict(self) -> dict[str, Tensor]:
        """Every key with its block."""
        blocks = torch.split(self._values, self._length_per_key, self._key_dim)
        return dict(zip(self._keys, blocks, strict=True))

    @staticmethod
    def regroup(keyed_tensors: list[KeyedTensor], groups: list[list[str]]) -> list[Tensor]:
        """The blocks of each group side by side; a key may be in several groups."""
        blocks: dict[str, Tensor] = {}
        for item in keyed_tensors:
            blocks |= item.to_dict()
        axis = keyed_tensors[0].key_dim()
        return [torch.cat([blocks[key] for key in group], axis) for group in groups]

    @staticmethod
    def regroup_as_dict(
        keyed_tensors: list[KeyedTensor], groups: list[list[str]], keys: list[str]
    ) -> dict[str, Tensor]:
        """As `regroup`, with a name for each group."""
        return dict(zip(keys, KeyedTensor.regroup(keyed_tensors, groups), strict=True))

    def to(self, device: torch.device, non_blocking: bool = False) -> KeyedTensor:
        """The same on another device."""
        values = self._values.to(device, non_blocking=non_blocking)
        return KeyedTensor(self._keys, self._length_per_key, values, self._key_dim)

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that `stream` uses the values."""
        self._values.record_stream(stream)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __repr__(self) -> str:
        return f"KeyedTensor({', '.join(self._keys)}: {tuple(self._values.shape)})"
