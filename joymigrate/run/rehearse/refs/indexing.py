"""Shapes and positions: transposes, slices, one-hot, extrema with indices, repeats, sorting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import vjp, working

BETA = "op-plugin docs/zh/custom_APIs/torch_npu/（beta）torch_npu-{}.md"
FORMULAS = "op-plugin derivatives.yaml"
Maybe = Tensor | None


@reference("npu_confusion_transpose", source=BETA.format("npu_confusion_transpose"))
def npu_confusion_transpose(
    x: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> Tensor:
    """Permute then reshape, or reshape then permute."""
    if transpose_first:
        return x.permute(*perm).reshape(list(shape))
    return x.reshape(list(shape)).permute(*perm).contiguous()


@reference("npu_confusion_transpose_backward", source=FORMULAS)
def npu_confusion_transpose_backward(
    grad: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> Tensor:
    """`shape` is the forward input's; `transpose_first` is the negated one of the forward call."""
    inverse = torch.tensor(list(perm)).argsort().tolist()
    if transpose_first:
        return grad.permute(*inverse).reshape(list(shape))
    permuted = [shape[axis] for axis in perm]
    return grad.reshape(permuted).permute(*inverse).contiguous()


@reference("npu_transpose", source=BETA.format("npu_transpose"))
def npu_transpose(x: Tensor, perm: Sequence[int]) -> Tensor:
    return x.permute(*perm).contiguous()


@reference("npu_broadcast", source=BETA.format("npu_broadcast"))
def npu_broadcast(x: Tensor, size: Sequence[int]) -> Tensor:
    return x.expand(*size).contiguous()


@reference("npu_reshape", source=BETA.format("npu_reshape"))
def npu_reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(list(shape)).clone()


def slice_of(x: Tensor, offsets: Sequence[int], size: Sequence[int]) -> Tensor:
    """`size` elements from `offsets` along every axis; -1 takes the rest."""
    for axis, (start, length) in enumerate(zip(offsets, size, strict=True)):
        x = x.narrow(axis, start, x.shape[axis] - start if length == -1 else length)
    return x.contiguous()


@reference("npu_slice", source=BETA.format("npu_slice"))
def npu_slice(x: Tensor, offsets: Sequence[int], size: Sequence[int]) -> Tensor:
    return slice_of(x, offsets, size)


def slice_strided(
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    masks: Sequence[int],
) -> Tensor:
    """Strided slice with the begin and end masks; positive strides."""
    begin_mask, end_mask, *others = masks
    if any(others) or any(step < 1 for step in strides):
        raise Unsimulated("npu_indexing", "ellipsis, new axes, shrunk axes or negative strides")
    index = tuple(
        slice(
            None if begin_mask >> axis & 1 else start, None if end_mask >> axis & 1 else stop, step
        )
        for axis, (start, stop, step) in enumerate(zip(begin, end, strides, strict=True))
    )
    return x[index].contiguous()


@reference("npu_indexing", source=BETA.format("npu_indexing"))
def npu_indexing(
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    begin_mask: int,
    end_mask: int,
    ellipsis_mask: int,
    new_axis_mask: int,
    shrink_axis_mask: int,
) -> Tensor:
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return slice_strided(x, begin, end, strides, masks)


@reference("npu_pad", source=BETA.format("npu_pad"))
def npu_pad(x: Tensor, paddings: Sequence[int]) -> Tensor:
    """Zeros before and behind every axis, first axis first."""
    pairs = [tuple(paddings[n : n + 2]) for n in range(0, len(paddings), 2)]
    return F.pad(x, [width for pair in reversed(pairs) for width in pair])


@reference("npu_one_hot", source=BETA.format("npu_one_hot"))
def npu_one_hot(
    x: Tensor, num_classes: int, depth: int, on_value: float, off_value: float
) -> Tensor:
    """float32; `num_classes` is the axis that is inserted, -1 the last one."""
    found = torch.where(
        x.unsqueeze(-1) == torch.arange(depth), float(on_value), float(off_value)
    ).to(torch.float32)
    return found if num_classes == -1 else found.movedim(-1, num_classes).contiguous()


@reference("npu_max.dim", source=BETA.format("npu_max"))
def npu_max(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    values, indices = x.max(dim, keepdim)
    return values, indices.to(torch.int32)


@reference("npu_min.dim", source=BETA.format("npu_min"))
def npu_min(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    values, indices = x.min(dim, keepdim)
    return values, indices.to(torch.int32)


@reference("npu_max_backward", "npu_min_backward", source=FORMULAS)
def extreme_backward(
    grad: Tensor, dim: int, indices: Tensor, sizes: Sequence[int], keepdim: bool
) -> Tensor:
    if not keepdim and len(sizes):
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(list(sizes)).scatter_(dim, indices.long(), grad)


@reference("npu_sort_v2", source=BETA.format("npu_sort_v2"))
def npu_sort_v2(x: Tensor, dim: int, descending: bool) -> Tensor:
    return x.sort(dim, descending).values


@reference("npu_stride_copy", source="op-plugin StridedCopyKernelNpu.cpp")
def npu_stride_copy(
    x: Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: int
) -> Tensor:
    return x.as_strided(list(shape), list(stride), int(storage_offset)).clone()


@reference("repeat_interleave_backward_int", source=FORMULAS)
def repeat_interleave_backward_int(
    grad: Tensor, x: Tensor, repeats: int, dim: int | None
) -> Tensor:
    if dim is None:
        return working(grad).reshape(-1, repeats).sum(1).reshape(x.shape).to(grad.dtype)
    axis = dim % x.dim()
    parts = working(grad).unflatten(axis, (x.shape[axis], repeats))  # type: ignore[no-untyped-call]
    found: Tensor = parts.sum(axis + 1).to(grad.dtype)
    return found


@reference("repeat_interleave_backward_tensor", source=FORMULAS)
def repeat_interleave_backward_tensor(
    grad: Tensor, x: Tensor, repeats: Tensor, dim: int | None
) -> Tensor:
    axis = 0 if dim is None else dim % x.dim()
    shape = [x.numel()] if dim is None else list(x.shape)
    source = torch.arange(shape[axis]).repeat_interleave(repeats.long().expand(shape[axis]))
    wide = torch.zeros(shape, dtype=working(grad).dtype)
    return wide.index_add_(axis, source, working(grad)).reshape(x.shape).to(grad.dtype)


@reference("npu_renorm_backward", source="op-plugin RenormBackwardKernelNpu.cpp")
def npu_renorm_backward(grad: Tensor, x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    found = vjp(lambda a: torch.renorm(a, p, dim, maxnorm), (x,), grad)[0]
    assert found is not None
    return found


@reference("npu_masked_fill_range", source="op-plugin MaskedFillRangeKernelNpu.cpp")
def npu_masked_fill_range(
    x: Tensor, start: Tensor, end: Tensor, value: Tensor, axis: int
) -> Tensor:
    """Filled with value[i] from start[i, j] to end[i, j] along `axis`.

    start and end are [loops, ranges]. Along the last axis (of two or more) range j is for row j
    of x; along another one every range is for all of x. Loops follow one another.
    """
    found = x.clone()
    axis = axis % x.dim()
    by_row = x.dim() > 1 and axis == x.dim() - 1
    for loop, row in itertools.product(range(start.shape[0]), range(start.shape[1])):
        low, high = int(start[loop, row]), int(end[loop, row])
        target = found[row].movedim(-1, 0) if by_row else found.movedim(axis, 0)
        target[low:high] = value[loop]
    return found


@reference("npu_sign_bits_pack", source=BETA.format("npu_sign_bits_pack"))
def npu_sign_bits_pack(x: Tensor, size: int) -> Tensor:
    """Signs as bits (one for x ≥ 0), eight to a uint8, padded with -1; [size, ⌈n/8⌉/size]."""
    padded = F.pad(x.float(), (0, -len(x) % 8), value=-1.0).reshape(-1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128])
    return ((padded >= 0) * weights).sum(1).to(torch.uint8).reshape(size, -1)


@reference("npu_sign_bits_unpack", source=BETA.format("npu_sign_bits_unpack"))
def npu_sign_bits_unpack(x: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    bits = (x.reshape(-1, 1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return (bits.to(dtype) * 2 - 1).reshape(size, math.prod(x.shape) * 8 // size)
