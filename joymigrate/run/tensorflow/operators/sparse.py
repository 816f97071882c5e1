"""Sparse tensors as TensorFlow has them: indices (n, rank), values (n,), shape (rank,)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joymigrate.run.tensorflow.operators.fingerprint import concatenate64, fingerprint64
from joymigrate.run.tensorflow.operators.table import beside, ints, operator, plain


@operator("SparseReshape", host=(1, 2))
def reshape(places: Tensor, lengths: Any, to: Any) -> tuple[Tensor, Tensor]:
    """Indices of the same elements in another shape."""
    old, new = ints(lengths), ints(to)
    if -1 in new:
        known = int(np.prod([each for each in new if each != -1]))
        new[new.index(-1)] = int(np.prod(old)) // known if known else 0
    where = torch.zeros(len(places), dtype=torch.int64, device=places.device)
    for axis, length in enumerate(old):
        where = where * length + places[:, axis]
    found = []
    for length in reversed(new):
        found.append(where % max(length, 1))
        where = where // max(length, 1)
    return torch.stack(found[::-1], 1), torch.tensor(new, dtype=torch.int64)


@operator("SparseFillEmptyRows", host=(2,))
def fill_empty_rows(
    places: Tensor, values: Any, lengths: Any, default: Any
) -> tuple[Tensor, Any, Tensor, Tensor]:
    """An element of the default in each row that has none; also which rows were empty."""
    rows = ints(lengths)[0]
    device = places.device
    counts = torch.bincount(places[:, 0], minlength=rows)
    empty = counts == 0
    added = empty.nonzero()[:, 0]
    more = torch.zeros(len(added), places.shape[1], dtype=torch.int64, device=device)
    more[:, 0] = added
    everywhere = torch.cat([places, more])
    order = torch.sort(everywhere[:, 0], stable=True).indices
    back = torch.argsort(order)[: len(places)]
    if isinstance(values, np.ndarray):
        texts = np.full(len(added), plain(default), dtype=object)
        filled: Any = np.concatenate([values, texts])[order.cpu().numpy()]
    else:
        numbers = torch.full((len(added),), plain(default), dtype=values.dtype)
        filled = torch.cat([values, beside(numbers, values)])[beside(order, values)]
    return everywhere[order], filled, empty, back


@operator("SparseToDense", host=(1,))
def to_dense(places: Tensor, lengths: Any, values: Any, default: Any) -> Any:
    """A dense tensor: values at places, the default elsewhere."""
    shape = ints(lengths)
    if isinstance(values, np.ndarray | bytes):
        texts = np.full(shape, plain(default), dtype=object)
        texts[tuple(places.cpu().numpy().reshape(-1, len(shape)).T)] = values
        return texts
    places = beside(places, values)
    total = torch.full(shape, plain(default), dtype=values.dtype, device=values.device)
    where = tuple(places.reshape(-1, len(shape)).long().unbind(-1))
    return total.index_put(where, values)


@operator("SparseReduceSum", host=(2, 3))
def reduce_sum(
    places: Tensor, values: Tensor, lengths: Any, axes: Any, *, keep_dims: bool = False
) -> Tensor:
    """Sums of a sparse tensor over axes, as a dense one."""
    shape = ints(lengths)
    total = torch.zeros(shape, dtype=values.dtype, device=values.device)
    where = tuple(beside(places, values).long().unbind(-1))
    total = total.index_put(where, values, accumulate=True)
    over = [axis % len(shape) for axis in ints(axes)]
    return total.sum(over, keepdim=keep_dims, dtype=values.dtype) if over else total


@operator("SparseTensorDenseMatMul", host=(2,))
def matmul(places: Tensor, values: Tensor, lengths: Any, x: Tensor) -> Tensor:
    """A sparse matrix by a dense one."""
    places, values = beside(places, x), beside(values, x)
    total = torch.zeros(ints(lengths)[0], x.shape[1], dtype=x.dtype, device=x.device)
    return total.index_add(0, places[:, 0], values[:, None] * x[places[:, 1]])


@operator("SparseCross")
def cross(
    *values: Any, N: int, hashed_output: bool, num_buckets: int, hash_key: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Hashes of every combination of features in a row, the last feature varying first."""
    if not hashed_output:
        raise ValueError("crosses that are texts are not converted")
    places, features, lengths = values[:N], values[N : 2 * N], values[2 * N : 3 * N]
    dense = values[3 * N :]
    rows = ints(lengths[0])[0] if N else len(dense[0])
    columns = [by_row(p, f, rows) for p, f in zip(places, features, strict=True)]
    columns += [list(words(each)) for each in dense]
    found: list[tuple[int, int]] = []
    hashes = []
    for row in range(rows):
        for at, parts in enumerate(itertools.product(*[column[row] for column in columns])):
            found.append((row, at))
            hashes.append(parts)
    total = np.full(len(found), hash_key % 2**64, dtype=np.uint64)
    for column in np.array(hashes, dtype=np.uint64).reshape(len(found), len(columns)).T:
        total = concatenate64(total, column)
    total = total % np.uint64(num_buckets or 2**63 - 1)
    where = torch.tensor(found, dtype=torch.int64).reshape(-1, 2)
    wide = int(where[:, 1].max()) + 1 if len(where) else 0
    return where, torch.from_numpy(total.astype(np.int64)), torch.tensor([rows, wide])


def words(values: Any) -> Any:
    """Features as uint64: texts hashed, numbers as they are."""
    if isinstance(values, np.ndarray):
        return fingerprint64(values)
    return values.cpu().numpy().astype(np.int64).view(np.uint64)


def by_row(places: Tensor, values: Any, rows: int) -> list[list[int]]:
    """Features of each row."""
    found: list[list[int]] = [[] for _ in range(rows)]
    for row, word in zip(places[:, 0].tolist(), words(values), strict=True):
        found[row].append(word)
    return found
