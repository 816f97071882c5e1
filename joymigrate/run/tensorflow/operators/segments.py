"""Unique values, and sums over segments: how embeddings of lists are combined."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joymigrate.run.tensorflow.operators.table import (
    DTYPES,
    beside,
    ints,
    operator,
    plain,
    whole,
)


@operator("Unique")
def unique(x: Any, *, out_idx: str = "int32") -> tuple[Any, Tensor]:
    """Values in the order they come first, and where each element's value stands."""
    flat = x if isinstance(x, np.ndarray) else x.cpu().numpy()
    values, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    kept = (
        values[order] if isinstance(x, np.ndarray) else torch.from_numpy(values[order]).to(x.device)
    )
    where = torch.from_numpy(place[inverse]).to(DTYPES[out_idx])
    return kept, where if isinstance(x, np.ndarray) else where.to(x.device)


def segment_sum(rows: Tensor, segments: Tensor, count: int) -> Tensor:
    """Sums of rows by segment, 0 for one without rows."""
    total = torch.zeros(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
    return total.index_add(0, beside(segments, rows).long(), rows)


def length_of(segments: Tensor) -> int:
    """Segments that sorted numbers name."""
    return int(segments[-1]) + 1 if len(segments) else 0


def sizes_of(segments: Tensor, count: int, like: Tensor) -> Tensor:
    """Rows of each segment as a column, at least 1."""
    sizes = torch.bincount(beside(segments, like).long(), minlength=count).clamp(min=1)
    return sizes.to(like.dtype).reshape(-1, *[1] * (like.ndim - 1))


@operator("SegmentSum")
def sum_segments(x: Tensor, segments: Tensor) -> Tensor:
    """Sums by sorted segment."""
    return segment_sum(x, segments, length_of(segments))


@operator("SegmentMean")
def mean_segments(x: Tensor, segments: Tensor) -> Tensor:
    """Means by sorted segment."""
    return sum_segments(x, segments) / sizes_of(segments, length_of(segments), x)


@operator("UnsortedSegmentSum", host=(2,))
def sum_unsorted(x: Tensor, segments: Tensor, count: Any) -> Tensor:
    """Sums by segment; numbers below 0 are left out."""
    flat = x.reshape(-1, *x.shape[segments.ndim :])
    where = beside(segments, x).reshape(-1)
    return segment_sum(flat[where >= 0], where[where >= 0], whole(count))


@operator("SegmentMax")
def max_segments(x: Tensor, segments: Tensor) -> Tensor:
    """The largest by sorted segment, 0 for one without rows."""
    count, where = length_of(segments), beside(segments, x).long()
    total = torch.zeros(count, *x.shape[1:], dtype=x.dtype, device=x.device)
    return segment_max(pass_over_nan(x, where), where, total, include_self=False)


def pass_over_nan(rows: Tensor, segments: Tensor) -> Tensor:
    """Rows with -inf for NaN where TensorFlow passes over it: in segments of several rows, in the
    columns that it compares 8 at once (4 of 64 bits), which are its packages' for x86. The rest of
    a row is compared one by one; see `segment_max`.
    """
    if not rows.is_floating_point():
        return rows
    size = 4 if rows.dtype == torch.float64 else 8
    wide = math.prod(rows.shape[1:])
    column = torch.arange(wide, device=rows.device).reshape(rows.shape[1:])
    several = (torch.bincount(segments) > 1)[segments].reshape(-1, *[1] * (rows.ndim - 1))
    return rows.masked_fill(rows.isnan() & several & (column < wide - wide % size), -torch.inf)


@operator("UnsortedSegmentMax", host=(2,))
def max_unsorted(x: Tensor, segments: Tensor, count: Any) -> Tensor:
    """The largest by segment, the least number there is for one without rows."""
    flat = x.reshape(-1, *x.shape[segments.ndim :])
    where = beside(segments, x).reshape(-1)
    total = torch.full((whole(count), *flat.shape[1:]), least(x), dtype=x.dtype, device=x.device)
    return segment_max(flat[where >= 0], where[where >= 0], total, include_self=True)


def least(x: Tensor) -> float:
    """The least finite number of a tensor's type."""
    return (torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)).min


def segment_max(rows: Tensor, segments: Tensor, total: Tensor, *, include_self: bool) -> Tensor:
    """The largest of rows by segment, written into `total`.

    TensorFlow compares row by row and takes the new one unless the old is larger. So NaN hides what
    came before it, and what comes after hides NaN.
    """
    shape = (-1, *[1] * (rows.ndim - 1))
    where = segments.long().reshape(shape).expand_as(rows)
    place = torch.arange(len(rows), device=rows.device).reshape(shape).expand_as(rows)
    none = torch.full_like(total, -1, dtype=torch.long)
    nan = none.scatter_reduce(0, where, torch.where(rows.isnan(), place, -1), "amax")
    last = none.scatter_reduce(0, where, place, "amax")
    seen = (place > nan.gather(0, where)) | (place == last.gather(0, where))
    lowest = -torch.inf if rows.is_floating_point() else least(rows)
    kept = torch.where(seen, rows, torch.full_like(rows, lowest))
    return total.scatter_reduce(0, where, kept, "amax", include_self=include_self)


@operator("SparseSegmentSum")
def sum_sparse(x: Tensor, places: Tensor, segments: Tensor) -> Tensor:
    """Sums of rows at places by sorted segment."""
    return sum_segments(x[beside(places, x).long()], segments)


@operator("SparseSegmentMean")
def mean_sparse(x: Tensor, places: Tensor, segments: Tensor) -> Tensor:
    """Means of rows at places by sorted segment."""
    return mean_segments(x[beside(places, x).long()], segments)


@operator("SparseSegmentSqrtN")
def sqrt_sparse(x: Tensor, places: Tensor, segments: Tensor) -> Tensor:
    """Sums of rows at places by segment, over the root of how many they are."""
    total = sum_sparse(x, places, segments)
    return total / sizes_of(segments, length_of(segments), x).sqrt()


@operator("Bucketize")
def bucketize(x: Tensor, *, boundaries: list[float]) -> Tensor:
    """The bucket of each number; a boundary belongs to the bucket above it."""
    edges = torch.tensor(boundaries, dtype=torch.float32, device=x.device)
    return torch.bucketize(x.float(), edges, right=True).to(torch.int32)


@operator("DenseBincount", host=(1,))
def bincount(x: Tensor, size: Any, weights: Tensor, *, binary_output: bool = False) -> Tensor:
    """How often, or how heavily, each number below `size` comes; by row for a matrix."""
    wide = whole(size)
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    inside = (rows >= 0) & (rows < wide)
    weights = beside(weights, x)
    added = (
        weights.reshape(rows.shape)
        if weights.numel()
        else torch.ones_like(rows, dtype=weights.dtype)
    )
    total = torch.zeros(len(rows), wide, dtype=weights.dtype, device=x.device)
    total.scatter_add_(1, torch.where(inside, rows, 0).long(), added * inside)
    total = (total > 0).to(total.dtype) if binary_output else total
    return total[0] if x.ndim < 2 else total


@operator("RaggedTensorToTensor", host=(0, 2))
def pad_ragged(
    lengths: Any, values: Any, default: Any, *splits: Tensor, row_partition_types: list[str]
) -> Any:
    """Rows of different lengths as a matrix, filled up with a default."""
    if row_partition_types != ["ROW_SPLITS"]:
        raise ValueError(f"ragged rows by {row_partition_types} are not converted")
    ends = splits[0].tolist()
    wanted = ints(lengths)
    sizes = [b - a for a, b in itertools.pairwise(ends)]
    wide = wanted[1] if len(wanted) > 1 and wanted[1] >= 0 else max(sizes, default=0)
    filler = plain(default) if hasattr(default, "reshape") else default
    if isinstance(values, np.ndarray):
        texts = np.full((len(sizes), wide), filler, dtype=object)
        for row, (start, size) in enumerate(zip(ends, sizes, strict=False)):
            texts[row, : min(size, wide)] = values[start : start + min(size, wide)]
        return texts
    total = torch.full((len(sizes), wide, *values.shape[1:]), filler, dtype=values.dtype)
    total = total.to(values.device)
    for row, (start, size) in enumerate(zip(ends, sizes, strict=False)):
        total[row, : min(size, wide)] = values[start : start + min(size, wide)]
    return total
