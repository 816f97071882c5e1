"""What processes that share tables keep of one exchange: groups, own parts, requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from joymigrate.run.train.formats.first_rows import Ids, hash_ids
from joymigrate.run.train.tables.bags import Bags
from joymigrate.run.train.tables.hash_index import Places

OWNER_SEED = 0x5EED  # another hash than that of the owner's own index


@dataclass(frozen=True, slots=True)
class TableGroups:
    """Process groups: keys (host), rows (fetching thread), gradients (main thread), and looks
    (host, main thread)."""

    keys: Any
    rows: Any
    gradients: Any
    looks: Any
    rank: int
    world: int

    @staticmethod
    def open(device: torch.device) -> TableGroups:
        """New groups over all ranks; called by all of them."""
        kind = "gloo" if device.type == "cpu" else None
        keys, rows, gradients, looks = (
            dist.new_group(backend=b) for b in ("gloo", kind, kind, "gloo")
        )
        return TableGroups(keys, rows, gradients, looks, dist.get_rank(), dist.get_world_size())


@dataclass
class OwnPart:
    """What all processes ask of one part that lies here, rank by rank."""

    ids: Ids  # each once
    counts: Places
    bags: Bags  # the units: bags of rows, or rows alone
    rows: Places  # [T] as in `bags`, on the host
    lengths: Places  # [units]


@dataclass
class RowRequest:
    """One batch between processes. Lists are by part, in the plan's order.

    A unit is what is sent for: the sum of a bag's rows in a part, or one row.
    """

    chosen: list[Tensor | None]  # units of this rank: places in its table's result; None: all
    pooled: list[bool]  # whether they are bags
    sent: Places  # [world, parts]: how many units are asked of each rank
    got: Places  # [world, parts]: how many each rank asks
    own: list[OwnPart]
    blocks: list[Tensor] | None = None  # fetched: [units, columns]
    seen: list[int] | None = None  # own parts: updates done when the rows were read


def owner_among(ids: Ids, parts: int) -> Places:
    """The part of a dynamic table that each id belongs to."""
    owner: Places = (hash_ids(ids, OWNER_SEED) % np.uint64(parts)).astype(np.int64)
    return owner


def stale_units(own: OwnPart, stale: Any) -> Places:
    """Units of a part that have a stale row, `stale` [U]."""
    hit = np.zeros(len(own.lengths), dtype=bool)
    hit[np.repeat(np.arange(len(hit)), own.lengths)[stale[own.rows]]] = True
    return np.flatnonzero(hit)
