"""Writing slices by index: scatter_update, scatter_nd_update, lists, quantised, index_add."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.quantise import npu_quantize

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None


def update_at(data: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """data[b] from position indices[b] along `axis` becomes updates[b], in place.

    Two-column indices hold (batch, position).
    """
    axis = axis % data.dim()
    for number, update in enumerate(updates):
        row = indices[number]
        batch, start = (number, int(row)) if row.dim() == 0 else (int(row[0]), int(row[1]))
        data[batch].narrow(axis - 1, start, update.shape[axis - 1]).copy_(update)
    return data


@reference("scatter_update_", source=DOCS.format("scatter_update_"))
def scatter_update_(x: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    return update_at(x, indices, updates, axis)


def _nd_update(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    x[tuple(indices.long().unbind(-1))] = updates
    return x


@reference("npu_scatter_nd_update_", source=DOCS.format("npu_scatter_nd_update_"))
def npu_scatter_nd_update_(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return _nd_update(x, indices, updates)


@reference("npu_scatter", source="op-plugin ScatterV1KernelNpu.cpp")
def npu_scatter(x: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """x with updates at `indices` along `dim`; indices may lack that axis (argmax's shape)."""
    if indices.dim() < x.dim():
        indices, updates = indices.unsqueeze(dim), updates.unsqueeze(dim)
    return x.scatter(dim, indices.long(), updates.to(x.dtype))


def _list_update(
    data: list[Tensor], indices: Tensor, updates: Tensor, mask: Maybe, axis: int
) -> None:
    for number, item in enumerate(data):
        if mask is not None and not bool(mask[number]):
            continue
        row = indices[number]
        axis_of_item = axis % item.dim()
        length = updates[number].shape[axis_of_item] if row.dim() == 0 else int(row[1])
        start = int(row) if row.dim() == 0 else int(row[0])
        piece = updates[number].narrow(axis_of_item, 0, length)
        item.narrow(axis_of_item, start, length).copy_(piece)


@reference("npu_scatter_list_", source="op-plugin ScatterListKernelNpuOpApi.cpp")
def npu_scatter_list_(
    x: list[Tensor], indices: Tensor, updates: Tensor, mask: Maybe, axis: int
) -> None:
    _list_update(x, indices, updates, mask, axis)


def _quantise(updates: Tensor, scales: Tensor, zero_points: Maybe, quant_axis: int) -> Tensor:
    offset = None if zero_points is None else zero_points.reshape(-1)
    return npu_quantize(updates, scales.reshape(-1), offset, 1, quant_axis)


@reference("npu_quant_scatter_", source=DOCS.format("npu_quant_scatter_"))
def npu_quant_scatter_(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    quant_scales: Tensor,
    quant_zero_points: Maybe,
    axis: int,
    quant_axis: int,
) -> Tensor:
    values = _quantise(updates, quant_scales, quant_zero_points, quant_axis)
    return update_at(x, indices, values, axis)


def _index_add(x: Tensor, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    x.index_put_((index.long(),), source * alpha, accumulate=True)
    return x


@reference("_npu_index_add_", source="torch_npu _meta_registrations.py; torch.index_add, dim 0")
def _npu_index_add_(x: Tensor, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    return _index_add(x, index, source, alpha)


@reference("npu_gather_sparse_index", source=DOCS.format("npu_gather_sparse_index"))
def npu_gather_sparse_index(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x by an index of any shape."""
    return x[index.long()]


@reference("npu_gather_sparse_index_backward", source="op-plugin derivatives.yaml")
def npu_gather_sparse_index_backward(grad: Tensor, self_sizes: list[int], index: Tensor) -> Tensor:
    rows = grad.reshape(-1, *self_sizes[1:])
    wide = torch.zeros(self_sizes, dtype=torch.float32)
    return wide.index_add_(0, index.reshape(-1).long(), rows.float()).to(grad.dtype)


@reference("npu_gather_backward", source="op-plugin derivatives.yaml, gather")
def npu_gather_backward(grad: Tensor, self_size: list[int], dim: int, index: Tensor) -> Tensor:
    return grad.new_zeros(self_size).scatter_add(dim, index.long(), grad)
