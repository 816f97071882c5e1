"""Sums of rows over bags, and the way back: sums of the bags' gradients over distinct rows.

Both are the registry's `embedding_bag` in its forward, over the same values in two orders. So
neither makes a matrix of a row for every value, and both add in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from joymigrate.run import kernels
from joymigrate.run.train.tables.hash_index import Places

RADIX = 1 << 16  # numpy sorts 16-bit numbers in one pass per byte


@dataclass(frozen=True, slots=True)
class Bags:
    """B bags of T values with U distinct rows.

    `rows` [T]: the row of each value, bag by bag, cut by `offsets` [B + 1]. `bags` [T]: the bag of
    each value, row by row, cut by `edges` [U + 1]. `single`: every bag is one value, so that a sum
    is a copy.
    """

    rows: Tensor
    offsets: Tensor
    bags: Tensor
    edges: Tensor

    def pool(self, weights: Tensor, places: Tensor | None = None) -> Tensor:
        """Sums [B, D] of `weights` [U, D]; with `places` [U] of those lines of `weights`."""
        rows = self.rows if places is None else places.index_select(0, self.rows)
        return sums(weights, rows, self.offsets)

    def gather(self, gradients: Tensor) -> Tensor:
        """Gradients of the rows, [U, D], from those of the bags [B, D]."""
        return sums(gradients, self.bags, self.edges)


def sums(values: Tensor, at: Tensor, offsets: Tensor) -> Tensor:
    """The registry's `embedding_bag` without a gradient."""
    with torch.no_grad():
        found: Tensor = kernels.op("embedding_bag")(values, at, offsets)
    return found


def make_bags(rows: Places, lengths: Places, distinct: int, device: torch.device) -> Bags:
    """From the row of each value [T] and the bags' lengths [B]. On the host; `distinct` is U."""
    order = np.argsort(rows.astype(np.uint16) if distinct <= RADIX else rows, kind="stable")
    counts = np.bincount(rows, minlength=distinct)
    bags = np.repeat(np.arange(len(lengths)), lengths)[order]
    return Bags(
        *(
            torch.from_numpy(item).to(device, torch.int64, non_blocking=True)
            for item in (rows, edges_of(lengths), bags, edges_of(counts))
        )
    )


def edges_of(lengths: Places) -> Places:
    """Where each segment starts, and the end of the last: [n] -> [n + 1]."""
    edges = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=edges[1:])
    return edges
