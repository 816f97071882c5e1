"""Operators of fbgemm that programs of TorchRec call by name (`torch.ops.fbgemm.…`), in torch.

Names and parameters are those of fbgemm's documentation (docs.pytorch.org/FBGEMM, jagged tensor
operators, read in November 2026). Sums over a whole device are torch's own; nothing is read back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.train.tables.jagged import pad


def asynchronous_complete_cumsum(t_in: Tensor) -> Tensor:
    """0, then the running sums: [N] -> [N + 1], of the same type."""
    return torch.nn.functional.pad(t_in.cumsum(0, dtype=t_in.dtype), (1, 0))


def asynchronous_inclusive_cumsum(t_in: Tensor) -> Tensor:
    """The running sums [N], of the same type."""
    return t_in.cumsum(0, dtype=t_in.dtype)


def asynchronous_exclusive_cumsum(t_in: Tensor) -> Tensor:
    """The running sums before each number [N], of the same type."""
    return asynchronous_complete_cumsum(t_in)[:-1]


def jagged_2d_to_dense(values: Tensor, offsets: Tensor, max_sequence_length: int) -> Tensor:
    """Rows [T, D] with edges [B + 1] as [B, length, D]; zeros behind the last, the rest cut off."""
    return pad(values, offsets, max_sequence_length, 0.0)


def jagged_1d_to_dense(
    values: Tensor, offsets: Tensor, max_sequence_length: int, padding_value: int
) -> Tensor:
    """Numbers [T] with edges [B + 1] as [B, length]."""
    return jagged_to_padded_dense(values, [offsets], [max_sequence_length], padding_value)


def jagged_to_padded_dense(
    values: Tensor, offsets: list[Tensor], max_lengths: list[int], padding_value: float = 0.0
) -> Tensor:
    """Values [T, …] with one list of edges as [B, length, …]. Raises `ValueError` for more."""
    if len(offsets) != 1 or len(max_lengths) != 1:
        raise ValueError(f"one jagged dimension is supported, got {len(offsets)}")
    return pad(values, offsets[0], max_lengths[0], padding_value)
