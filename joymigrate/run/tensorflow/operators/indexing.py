"""Shapes, slices and lookups."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from joymigrate.run.tensorflow.operators.table import DTYPES, beside, ints, operator, whole


def shape_of(x: Any) -> list[int]:
    """Lengths of axes, of a tensor or of texts."""
    return list(x.shape)


@operator("Shape")
def shape(x: Any, *, out_type: str = "int32") -> Tensor:
    """Lengths of axes, on the host."""
    return torch.tensor(shape_of(x), dtype=DTYPES[out_type])


@operator("ShapeN")
def shapes(*values: Any, out_type: str = "int32") -> tuple[Tensor, ...]:
    """`shape` of each."""
    return tuple(shape(each, out_type=out_type) for each in values)


@operator("Size")
def size(x: Any, *, out_type: str = "int32") -> Tensor:
    """The number of elements, on the host."""
    return torch.tensor(int(np.prod(shape_of(x))), dtype=DTYPES[out_type])


@operator("Rank")
def rank(x: Any) -> Tensor:
    """The number of axes, on the host."""
    return torch.tensor(x.ndim, dtype=torch.int32)


@operator("Reshape", host=(1,))
def reshape(x: Any, to: Any) -> Any:
    """The same elements in another shape."""
    return x.reshape(ints(to))


@operator("Squeeze")
def squeeze(x: Any, *, squeeze_dims: list[int]) -> Any:
    """Without axes of length 1: those named, else all."""
    lengths = shape_of(x)
    gone = {axis % len(lengths) for axis in squeeze_dims}
    gone = gone or {axis for axis, length in enumerate(lengths) if length == 1}
    wrong = [axis for axis in gone if lengths[axis] != 1]
    if wrong:
        raise ValueError(f"axes {wrong} of shape {lengths} are not of length 1")
    return x.reshape([length for axis, length in enumerate(lengths) if axis not in gone])


@operator("ExpandDims", host=(1,))
def expand(x: Any, axis: Any) -> Any:
    """With an axis of length 1."""
    at = whole(axis)
    lengths = shape_of(x)
    lengths.insert(at if at >= 0 else at + len(lengths) + 1, 1)
    return x.reshape(lengths)


@operator("Transpose", host=(1,))
def transpose(x: Any, axes: Any) -> Any:
    """Axes in another order."""
    return x.transpose(ints(axes)) if isinstance(x, np.ndarray) else x.permute(ints(axes))


@operator("Tile", host=(1,))
def tile(x: Any, times: Any) -> Any:
    """Repeated along each axis."""
    return np.tile(x, ints(times)) if isinstance(x, np.ndarray) else x.repeat(ints(times))


@operator("BroadcastTo", host=(1,))
def broadcast(x: Any, to: Any) -> Any:
    """Repeated to a shape."""
    lengths = ints(to)
    return np.broadcast_to(x, lengths) if isinstance(x, np.ndarray) else x.broadcast_to(lengths)


@operator("Pack")
def pack(*values: Any, axis: int = 0) -> Any:
    """Stacked along a new axis."""
    if isinstance(values[0], np.ndarray):
        return np.stack(values, axis)
    return torch.stack([beside(each, *values) for each in values], axis)


@operator("Unpack")
def unpack(x: Any, *, num: int, axis: int = 0) -> tuple[Any, ...]:
    """Parts along an axis, which goes."""
    if isinstance(x, np.ndarray):
        return tuple(np.take(x, at, axis) for at in range(num))
    return torch.unbind(x, axis)


def concatenate(values: list[Any], axis: int) -> Any:
    """Parts behind one another."""
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values, axis)
    return torch.cat([beside(each, *values) for each in values], axis)


@operator("ConcatV2", host=(-1,))
def concat(*values: Any) -> Any:
    """Parts behind one another along the axis that comes last."""
    return concatenate(list(values[:-1]), whole(values[-1]))


@operator("Concat", host=(0,))
def concat_first(axis: Any, *values: Any) -> Any:
    """Parts behind one another along the axis that comes first."""
    return concatenate(list(values), whole(axis))


@operator("Split", host=(0,))
def split(axis: Any, x: Any, *, num_split: int) -> tuple[Any, ...]:
    """Equal parts."""
    at = whole(axis)
    if isinstance(x, np.ndarray):
        return tuple(np.split(x, num_split, at))
    return torch.split(x, x.shape[at] // num_split, at)


@operator("SplitV", host=(1, 2))
def split_by(x: Tensor, sizes: Any, axis: Any) -> tuple[Tensor, ...]:
    """Parts of given lengths; -1 is the rest."""
    lengths, at = ints(sizes), whole(axis)
    rest = x.shape[at] - sum(each for each in lengths if each >= 0)
    return torch.split(x, [rest if each < 0 else each for each in lengths], at)


@operator("Fill", host=(0,))
def fill(to: Any, value: Any) -> Any:
    """One value in a shape."""
    if isinstance(value, np.ndarray | bytes):
        return np.full(ints(to), np.asarray(value, dtype=object).reshape(-1)[0], dtype=object)
    return value.reshape([1] * len(ints(to))).expand(ints(to)).clone()


@operator("Range", host=(0, 1, 2))
def count(start: Any, stop: Any, step: Any, *, Tidx: str = "int32") -> Tensor:
    """Numbers from start, before stop."""
    first, last, by = (
        each.item() if hasattr(each, "item") else each for each in (start, stop, step)
    )
    return torch.arange(first, last, by, dtype=DTYPES[Tidx])


@operator("StridedSlice", host=(1, 2, 3))
def strided_slice(
    x: Any,
    begin: Any,
    end: Any,
    strides: Any,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Any:
    """x[begin:end:stride, …] as Python writes it."""
    starts, stops, steps = ints(begin), ints(end), ints(strides)
    where: list[Any] = []
    for at, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        bit = 1 << at
        if ellipsis_mask & bit:
            where.append(Ellipsis)
        elif new_axis_mask & bit:
            where.append(None)
        elif shrink_axis_mask & bit:
            where.append(start)
        else:
            low = None if begin_mask & bit else start
            where.append(slice(low, None if end_mask & bit else stop, step))
    return slice_of(x, where)


def slice_of(x: Any, where: list[Any]) -> Any:
    """x[where]; torch has no steps backwards."""
    if isinstance(x, np.ndarray):
        return np.asarray(x[tuple(where)], dtype=object)
    if all(not isinstance(each, slice) or (each.step or 1) > 0 for each in where):
        return x[tuple(where)]
    return torch.from_numpy(x.detach().cpu().numpy()[tuple(where)].copy()).to(x.device)


@operator("Slice", host=(1, 2))
def cut(x: Any, begin: Any, sizes: Any) -> Any:
    """A block; a size of -1 goes to the end."""
    pairs = zip(ints(begin), ints(sizes), strict=True)
    return x[tuple(slice(low, None if length < 0 else low + length) for low, length in pairs)]


def on_device(places: Any, x: Any) -> Any:
    """Places as torch indexes with them, on the device of x; outside ones are errors."""
    return beside(places, x).long()


@operator("ResourceGather", "Gather")
def gather_rows(x: Any, places: Tensor, *, batch_dims: int = 0) -> Any:
    """Rows of a table: x[places]."""
    return gather(x, places, 0, batch_dims=batch_dims)


@operator("GatherV2", host=(2,))
def gather(x: Any, places: Any, axis: Any, *, batch_dims: int = 0) -> Any:
    """Slices of x at places along an axis."""
    at = whole(axis)
    if isinstance(x, np.ndarray):
        return np.take(x, places.cpu().numpy(), at)
    x = beside(x, places)
    places = on_device(places, x)
    at = at % x.ndim
    if batch_dims:
        return gather_batch(x, places, at, batch_dims)
    if at == 0 and x.ndim == 2 and x.is_floating_point():
        return functional.embedding(places, x)
    lengths = [*x.shape[:at], *places.shape, *x.shape[at + 1 :]]
    return x.index_select(at, places.reshape(-1)).reshape(lengths)


def gather_batch(x: Tensor, places: Tensor, axis: int, batch: int) -> Tensor:
    """`gather` with leading axes in common."""
    lead = int(np.prod(x.shape[:batch]))
    rows = x.reshape(lead, *x.shape[batch:])
    picked = [
        gather(row, where, axis - batch)
        for row, where in zip(rows, places.reshape(lead, *places.shape[batch:]), strict=True)
    ]
    return torch.stack(picked).reshape(*x.shape[:batch], *picked[0].shape)


@operator("GatherNd")
def gather_nd(x: Any, places: Tensor) -> Any:
    """Elements or slices at whole indices, (…, depth)."""
    if isinstance(x, np.ndarray):
        return x[tuple(places.cpu().numpy().transpose())]
    x = beside(x, places)
    return x[tuple(on_device(places, x).unbind(-1))]


@operator("ScatterNd", host=(2,))
def scatter_nd(places: Tensor, values: Tensor, to: Any) -> Tensor:
    """Zeros of a shape, with values added at places."""
    total = torch.zeros(ints(to), dtype=values.dtype, device=values.device)
    where = tuple(on_device(places, values).unbind(-1))
    return total.index_put(where, values, accumulate=True)


@operator("TensorScatterUpdate")
def scatter_update(x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """x with other values at places."""
    return x.index_put(tuple(on_device(places, x).unbind(-1)), beside(values, x))


@operator("OneHot", host=(1,))
def one_hot(places: Tensor, depth: Any, on: Any, off: Any, *, axis: int = -1) -> Tensor:
    """`on` at places, `off` elsewhere; a place outside has none."""
    classes = torch.arange(whole(depth), device=places.device)
    hits = (places.unsqueeze(-1) == classes).movedim(-1, axis)
    return torch.where(hits, beside(on, places), beside(off, places))


@operator("Where")
def where(condition: Tensor) -> Tensor:
    """Indices of what holds, (n, rank)."""
    return condition.nonzero()


@operator("Pad", host=(1,))
def pad(x: Tensor, widths: Any) -> Tensor:
    """Zeros around."""
    return pad_with(x, widths, 0)


@operator("PadV2", host=(1, 2))
def pad_with(x: Tensor, widths: Any, value: Any) -> Tensor:
    """A value around."""
    pairs = np.asarray(widths).reshape(-1, 2).tolist()
    return functional.pad(
        x, [each for pair in reversed(pairs) for each in pair], value=float(value)
    )


@operator("ReverseV2", host=(1,))
def reverse(x: Tensor, axes: Any) -> Tensor:
    """Backwards along axes."""
    return x.flip(ints(axes))


@operator("InvertPermutation")
def invert(x: Tensor) -> Tensor:
    """The permutation that undoes one."""
    return torch.argsort(x).to(x.dtype)


@operator("DynamicPartition")
def partition(x: Any, parts: Tensor, *, num_partitions: int) -> tuple[Any, ...]:
    """Rows of each part."""
    return tuple(x[beside(parts, x) == each] for each in range(num_partitions))


@operator("DynamicStitch", "ParallelDynamicStitch")
def stitch(*values: Any) -> Any:
    """Rows put in places: first all lists of places, then as many lists of rows."""
    half = len(values) // 2
    rows = concatenate(
        [
            v.reshape(p.numel(), *v.shape[p.ndim :])
            for p, v in zip(values[:half], values[half:], strict=True)
        ],
        0,
    )
    places = beside(torch.cat([each.reshape(-1) for each in values[:half]]), rows).long()
    total = torch.zeros(
        int(places.max()) + 1 if len(places) else 0,
        *rows.shape[1:],
        dtype=rows.dtype,
        device=rows.device,
    )
    return total.index_put((places,), rows)
