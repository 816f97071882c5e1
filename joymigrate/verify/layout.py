"""A tensor's values laid out in memory as another tensor's are: its strides, storage offset and
expanded dimensions.

A kernel that reads a strided operand in the storage's order is right on every contiguous copy. So
what a copied call is fed lies as the program's own tensor does. Memory is written and read as one
flat block, with strides laid over it: a copy of a strided tensor is a kernel under suspicion, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)
ALIGNED = 64  # elements: an offset is kept by its rest, so that no copy is as large as the storage


def has_strides(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of plain memory."""
    plain = type(tensor) in PLAIN and tensor.layout is torch.strided
    return plain and not tensor.is_meta and not tensor.is_quantized and not tensor.is_nested


def reach(tensor: torch.Tensor) -> int:
    """From its first to its last element: how much memory a tensor spans."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((n - 1) * step for n, step in steps)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor spans, as one flat tensor; nothing is copied."""
    flat = tensor.detach()
    return flat.as_strided((reach(tensor),), (1,), tensor.storage_offset())


def offset_of(tensor: torch.Tensor) -> int:
    """Where a copy begins in its memory: not at 0 where the tensor does not."""
    start = int(tensor.storage_offset())
    return start % ALIGNED or ALIGNED * bool(start)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether every copy of the tensor lies as it does."""
    return tensor.is_contiguous() and not tensor.storage_offset()


def fillable(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether every element has a place of its own, by the order of strides."""
    if len(shape) != len(stride) or 0 in shape:
        return False
    reach = 0
    for step, size in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step <= reach:
            return False
        reach += step * (size - 1)
    return True


def over(block: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    """A tensor over a flat block, in the strides of another one; no view in autograd's eyes."""
    return block.as_strided(like.shape, like.stride(), offset).data


def copy_as(
    tensor: torch.Tensor, dtype: torch.dtype | None = None, device: Any = None
) -> torch.Tensor:
    """A copy of a tensor's values that lies in memory as the tensor does; the same where nothing is
    known of its memory (sparse, nested, of a class of its own)."""
    dtype, device = dtype or tensor.dtype, device or tensor.device
    if not has_strides(tensor) or is_plain(tensor) or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().to(device=device, dtype=dtype, copy=True)
    offset, flat = offset_of(tensor), memory_of(tensor)
    block = torch.empty(offset + flat.numel(), dtype=dtype, device=device)
    block[offset:].copy_(flat)
    return over(block, tensor, offset)


def lay(value: torch.Tensor, like: torch.Tensor, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A copy of `value` in a dtype on a device, in the memory layout of `like`.

    Elements of `like` that share their memory can hold one value only: where `value` has several
    for them, its copy is contiguous.
    """
    value = value.detach()
    if value.shape != like.shape or not has_strides(like) or is_plain(like) or not value.numel():
        return value.to(device=device, dtype=dtype, copy=True)
    if not has_strides(value):
        return value.to(device=device, dtype=dtype, copy=True)
    if value.stride() == like.stride() and value.storage_offset() == like.storage_offset():
        return copy_as(value, dtype, device)
    offset = offset_of(like)
    block = torch.zeros(offset + reach(like), dtype=dtype, device=value.device)
    room = over(block, like, offset)
    # What an expanded dimension holds is written once.
    steps = zip(like.shape, like.stride(), strict=True)
    once = tuple(slice(0, 1 if step == 0 and n > 1 else None) for n, step in steps)
    part = room[once]
    part.copy_(value[once])
    if part.shape != room.shape or torch._debug_has_internal_overlap(part):
        wanted = value.to(dtype)
        if not bool(((room == wanted) | (wanted != wanted)).all()):
            return value.to(device=device, dtype=dtype, copy=True)
    return over(block.to(device), like, offset)
