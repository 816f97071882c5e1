"""Four statistics and a linear sketch of a tensor, computed where it lies, without a host sync.

s = Σ_r sign_r · x[64 r : 64 (r + 1)] over the flattened tensor: ‖s(a) - s(b)‖ estimates ‖a - b‖
(unbiased; standard deviation about 9 %), and sketches of shards add up to the whole tensor's,
because a row's sign depends on its global position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from joymigrate.verify.signs import WIDTH, signs

Row = torch.Tensor | NDArray[np.float32]

_on_device: dict[torch.device, torch.Tensor] = {}


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a local tensor lies in the global one: its offset per dimension, the global shape."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    flat: bool = False  # a stretch of the flattened tensor: `offset` is its first element


def device_signs(rows: int, start: int, device: torch.device) -> torch.Tensor:
    """The signs of some rows on a device, kept there."""
    known = _on_device.get(device)
    if known is None or known.numel() < start + rows:
        size = 1 << max(16, (start + rows - 1).bit_length())
        known = torch.from_numpy(signs(size).copy()).to(device)
        _on_device[device] = known
    return known[start : start + rows]


def as_float(tensor: torch.Tensor) -> torch.Tensor:
    """The values as float32: complex ones as pairs, whole numbers as they are."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor if tensor.dtype == torch.float32 else tensor.float()


def statistics(values: torch.Tensor) -> Row:
    """(max, min, mean, l2 norm) as four floats; zeros for an empty tensor."""
    if values.numel() == 0:
        return np.zeros(4, np.float32)
    low, high = torch.aminmax(values)
    parts = (high, low, values.mean(), torch.linalg.vector_norm(values))
    if values.device.type == "cpu":
        return np.array([part.item() for part in parts], np.float32)
    return torch.stack(parts)


def sketch(values: torch.Tensor, shard: ShardPlace | None = None) -> torch.Tensor:
    """64 floats; `shard` places a local tensor in the global one."""
    if shard is not None and shard.flat:
        return sketch_flat(values.reshape(-1), shard.offset[0])
    if shard is not None and any(shard.offset):
        return sketch_of_shard(values, shard)
    if shard is not None and tuple(values.shape[1:]) != tuple(shard.shape[1:]):
        return sketch_of_shard(values, shard)
    return sketch_flat(values.reshape(-1), 0)


def sketch_flat(flat: torch.Tensor, offset: int) -> torch.Tensor:
    """The sketch of consecutive elements that begin at a global position."""
    front = offset % WIDTH
    if front:
        flat = torch.cat((flat.new_zeros(front), flat))
    size, rows = flat.numel(), flat.numel() // WIDTH
    first = offset // WIDTH
    if rows == 0:
        flat = torch.cat((flat, flat.new_zeros(WIDTH - size)))
        return flat * device_signs(1, first, flat.device)
    body = flat[: rows * WIDTH].view(rows, WIDTH)
    made = (device_signs(rows, first, flat.device).view(1, rows) @ body).view(-1)
    rest = size - rows * WIDTH
    if rest:
        made = made.clone()
        made[:rest] += flat[rows * WIDTH :] * device_signs(1, first + rows, flat.device)
    return made


def sketch_of_shard(values: torch.Tensor, shard: ShardPlace) -> torch.Tensor:
    """The sketch of a block of a larger tensor."""
    if tuple(values.shape[1:]) == tuple(shard.shape[1:]):
        inner = 1
        for size in shard.shape[1:]:
            inner *= size
        return sketch_flat(values.reshape(-1), shard.offset[0] * inner)
    index = positions(values.shape, shard).to(values.device)
    weight = device_signs(int(index.max()) // WIDTH + 1, 0, values.device)[index // WIDTH]
    made = values.new_zeros(WIDTH)
    return made.index_add_(0, index % WIDTH, values.reshape(-1) * weight)


def positions(shape: Sequence[int], shard: ShardPlace) -> torch.Tensor:
    """Global flat position of each local element."""
    index = torch.zeros((1,) * len(shape), dtype=torch.int64)
    stride = 1
    for dim in reversed(range(len(shape))):
        along = (torch.arange(shape[dim]) + shard.offset[dim]) * stride
        index = index + along.view([-1 if d == dim else 1 for d in range(len(shape))])
        stride *= shard.shape[dim]
    return index.reshape(-1)
