"""Reductions by index: scatter.reduce, index_reduce, segment_reduce, embedding_bag's gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import fill

WORDS = {"add": "sum", "multiply": "prod", "max": "amax", "min": "amin"}
IDENTITY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
PER_BAG_SUM, PER_BAG_MEAN = 0, 1  # embedding_bag's modes; 2 is max


@fill("scatter.reduce scatter_.reduce scatter.reduce_out", rtol=2e-6, atol=1e-6)
def scatter_by(x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Tensor:
    """Add or multiply `source` into places of x."""
    return torch.scatter_reduce(x, dim, index, source, WORDS[reduce])


@fill("scatter.value_reduce scatter_.value_reduce scatter.value_reduce_out", rtol=2e-6, atol=1e-6)
def scatter_value_by(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Tensor:
    """Add or multiply one value into places of x."""
    source = torch.full(index.shape, value, dtype=x.dtype, device=x.device)
    return torch.scatter_reduce(x, dim, index, source, WORDS[reduce])


@fill("scatter_add.out", rtol=2e-6, atol=1e-6)
def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Add `source` into places of x."""
    return torch.scatter_add(x, dim, index, source)


@fill("index_reduce_ index_reduce index_reduce.out", rtol=3e-6, atol=1e-6)
def index_reduce(
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Reduce slices of `source` into slices of x: prod, mean, amax or amin."""
    if x.dim() == 0:
        flat = index_reduce(
            x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce,
            include_self=include_self,
        )  # fmt: skip
        return flat.reshape(())
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.to(torch.int64).reshape(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def bounds(
    data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int
) -> tuple[Tensor, Tensor]:
    """Lengths of the segments, and for each element along `axis` its segment.

    Elements behind the last segment get the number of segments.
    """
    if lengths is None:
        if offsets is None:
            raise RuntimeError("segment_reduce needs lengths or offsets")
        lengths = offsets[..., 1:] - offsets[..., :-1]
        ends = offsets[..., 1:]
        starts = offsets[..., :1]
    else:
        ends = lengths.cumsum(-1)
        starts = None
    number = lengths.shape[-1]
    where = torch.arange(data.shape[axis], device=data.device, dtype=ends.dtype)
    where = where.expand(*lengths.shape[:-1], data.shape[axis]).contiguous()
    segment = torch.searchsorted(ends.contiguous(), where, right=True)
    if starts is not None:
        segment = torch.where(where < starts, number, segment)
    return lengths, segment


def beside(value: Tensor, data: Tensor) -> Tensor:
    """`value` of shape (outer…, n) with ones for data's dimensions behind."""
    return value.reshape(*value.shape, *[1] * (data.dim() - value.dim()))


@fill("segment_reduce", rtol=3e-6, atol=1e-6)
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Reduce runs of rows; an empty one gives `initial`, else the identity (mean: nan)."""
    lengths, segment = bounds(data, lengths, offsets, axis)
    number = lengths.shape[-1]
    shape = [*data.shape[:axis], number + 1, *data.shape[axis + 1 :]]
    start = IDENTITY[reduce] if initial is None else float(initial)
    places = beside(segment, data).expand(data.shape)
    word = {"max": "amax", "min": "amin", "mean": "sum"}.get(reduce, reduce)
    into = torch.full(shape, start, dtype=data.dtype, device=data.device)
    found = torch.scatter_reduce(into, axis, places, data, word).narrow(axis, 0, number)
    if reduce != "mean":
        return found
    size = beside(lengths, data).to(data.dtype)
    mean = found / torch.where(size == 0, 1, size)
    return torch.where(size == 0, math.nan, mean) if initial is None else mean


@fill("_segment_reduce_backward", rtol=4e-6, atol=1e-6)
def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """The gradient; ties of max and min share it, a product leaves its own factor out."""
    lengths, segment = bounds(data, lengths, offsets, axis)
    number = lengths.shape[-1]
    inside = beside(segment < number, data)
    places = beside(segment.clamp(max=max(number - 1, 0)), data).expand(data.shape)
    upper = grad.gather(axis, places)
    if reduce == "mean":
        size = beside(lengths, data).to(data.dtype).expand(output.shape).gather(axis, places)
        upper = upper / torch.where(size == 0, 1, size)
    elif reduce in ("max", "min"):
        best = output.gather(axis, places)
        hit = ((data == best) | torch.isnan(data)).to(data.dtype) * inside.to(data.dtype)
        ties = torch.zeros_like(output).scatter_add(axis, places, hit)
        upper = upper * hit / ties.clamp(min=1).gather(axis, places)
    elif reduce == "prod":
        start = 1.0 if initial is None else float(initial)
        upper = upper * others(data, places, output, inside, axis, start)
    return torch.where(inside, upper, 0)


def others(
    data: Tensor, places: Tensor, output: Tensor, inside: Tensor, axis: int, start: float
) -> Tensor:
    """The product of the other elements of each one's segment, zeros among them counted."""
    zero = (data == 0) & inside
    factors = torch.where(zero | ~inside, 1, data)
    product = torch.full_like(output, start).scatter_reduce(axis, places, factors, "prod")
    zeros = torch.zeros_like(output).scatter_add(axis, places, zero.to(data.dtype))
    product, zeros = product.gather(axis, places), zeros.gather(axis, places)
    rest = zeros - zero.to(data.dtype)
    return torch.where(rest > 0, 0, product / torch.where(zero, 1, data))


@fill("_logcumsumexp _logcumsumexp.out", rtol=3e-6, atol=2e-6)
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log of the running sum of exp(x), by doubling: log2(n) steps of logaddexp."""
    if x.dim() == 0 or x.numel() == 0:
        return x.clone()
    found, step = x, 1
    number = x.shape[dim]
    while step < number:
        head = found.narrow(dim, 0, step)
        rest = torch.logaddexp(
            found.narrow(dim, step, number - step), found.narrow(dim, 0, number - step)
        )
        found = torch.cat([head, rest], dim)
        step *= 2
    return found.clone() if found is x else found


@fill("_embedding_bag_dense_backward", rtol=3e-6, atol=1e-6)
def embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The table's gradient: every index gets its bag's row, weighted as the mode says."""
    result = torch.zeros(num_weights, grad.shape[1], dtype=grad.dtype, device=grad.device)
    if indices.numel() == 0:
        return result
    if mode not in (PER_BAG_SUM, PER_BAG_MEAN):
        chosen = maximum_indices.to(torch.int64)
        kept = torch.where(chosen >= 0, grad, 0)
        return result.scatter_add(0, chosen.clamp(min=0), kept)
    indices, bags = indices.to(torch.int64), offset2bag.to(torch.int64)
    used = (indices != padding_idx).to(grad.dtype)
    weight = used
    if mode == PER_BAG_MEAN:
        sizes = torch.zeros(grad.shape[0], dtype=grad.dtype, device=grad.device)
        sizes = sizes.index_add(0, bags, used)
        weight = weight / sizes.clamp(min=1).index_select(0, bags)
    if per_sample_weights is not None:
        weight = weight * per_sample_weights
    if scale_grad_by_freq:
        counts = torch.zeros(num_weights, dtype=grad.dtype, device=grad.device)
        counts = counts.index_add(0, indices, torch.ones_like(used))
        weight = weight / counts.index_select(0, indices)
    rows = grad.index_select(0, bags) * weight[:, None]
    return result.index_add(0, indices, rows)


@fill("_embedding_bag_backward", rtol=3e-6, atol=1e-6)
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The table's gradient, with the bags worked out of `offsets` where they are not given."""
    if offset2bag.numel() != indices.numel():
        where = torch.arange(indices.numel(), device=indices.device, dtype=offsets.dtype)
        offset2bag = torch.searchsorted(offsets.contiguous(), where, right=True) - 1
    if sparse and not scale_grad_by_freq and holds_sparse(grad.device.type):
        return embedding_bag_sparse_backward(
            grad, indices, offset2bag, num_weights, mode, per_sample_weights, padding_idx
        )
    return embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
        scale_grad_by_freq, mode, per_sample_weights, padding_idx,
    )  # fmt: skip


SPARSE_MADE_BY = "aten::_sparse_coo_tensor_with_dims_and_tensors"


def holds_sparse(device: str) -> bool:
    """Whether the device's package makes and adds sparse tensors; elsewhere gradients are dense."""
    key = f"Sparse{torch._C._dispatch_key_for_device(device)}"
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    return known(SPARSE_MADE_BY, key) and known("aten::add_.Tensor", key)


def embedding_bag_sparse_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    num_weights: int,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int,
) -> Tensor:
    """The table's gradient [num_weights, D] as a row for each index, repeated ids not added up."""
    indices, bags = indices.to(torch.int64), offset2bag.to(torch.int64)
    if padding_idx >= 0:
        used = (indices != padding_idx).nonzero().squeeze(1)
        indices, bags = indices.index_select(0, used), bags.index_select(0, used)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.index_select(0, used)
    rows = grad.index_select(0, bags)
    if mode == PER_BAG_MEAN:
        sizes = torch.zeros(grad.shape[0], dtype=grad.dtype, device=grad.device)
        ones = torch.ones(bags.shape, dtype=grad.dtype, device=grad.device)
        rows = rows / sizes.index_add(0, bags, ones).index_select(0, bags)[:, None]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    size = (num_weights, grad.shape[1])
    return torch.sparse_coo_tensor(indices[None], rows, size, check_invariants=False)
