"""From a batch to distinct ids: what a collection asks of its tables for one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.bags import Bags, make_bags
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.jagged import to_offsets
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor
from joymigrate.run.train.tables.table import Table


@dataclass
class TableRoute:
    """The ids of one table in one batch.

    `given` [T] on the host, repeated ones too; `lengths` [k·B] of the bags of the table's k
    features; `weights` [T] or None. `pooled`: what is wanted are the sums of the bags' rows, and
    not the rows.
    """

    given: Ids
    lengths: Tensor
    weights: Tensor | None
    device: torch.device
    pooled: bool = False

    @cached_property
    def distinct(self) -> Distinct:
        """Each id once."""
        places, ids = pd.factorize(self.given)
        counts = np.bincount(places, minlength=len(ids))
        return Distinct(np.ascontiguousarray(ids, dtype=np.int64), counts, places.astype(np.int64))

    @cached_property
    def inverse(self) -> Tensor:
        """Which of the distinct ids each value is, [T] on the device."""
        return torch.from_numpy(self.distinct.places).to(self.device, non_blocking=True)

    @cached_property
    def offsets(self) -> Tensor:
        """The bags' edges, [k·B + 1] on the device."""
        return to_offsets(self.lengths).to(self.device, non_blocking=True)

    @cached_property
    def bags(self) -> Bags:
        """How rows are pooled and gradients go back."""
        lengths: Places = self.lengths.numpy()
        return make_bags(self.distinct.places, lengths, len(self.distinct.ids), self.device)


@dataclass(frozen=True, slots=True)
class Distinct:
    """Ids [U] in the order of their first sighting, how often each was seen, and [T] places."""

    ids: Ids
    counts: Places
    places: Places


@dataclass(frozen=True, slots=True)
class Lines:
    """Values that find their rows in a whole matrix: `inverse` [T], cut by `offsets`."""

    inverse: Tensor
    offsets: Tensor
    weights: Tensor | None


def route(
    batch: KeyedJaggedTensor, features: Sequence[str], table: str, device: torch.device,
    weighted: bool, pooled: bool = False,
) -> TableRoute:  # fmt: skip
    """The ids of the features that read one table."""
    part = select(batch, features)
    weights = part.weights().to(device, non_blocking=True) if weighted else None
    lengths = part.lengths().to("cpu", torch.int64)
    return TableRoute(host_ids(part.values(), table), lengths, weights, device, pooled)


def route_lines(
    batch: KeyedJaggedTensor, features: Sequence[str], table: Table, weighted: bool
) -> Lines | None:
    """The lines of every value in the table's matrix, where all are there: nothing is removed."""
    part = select(batch, features)
    lines = table.lines_of(host_ids(part.values(), table.name))
    if lines is None:
        return None
    offsets = part.offsets().to(table.device, torch.int64)
    weights = part.weights().to(table.device) if weighted else None
    return Lines(torch.from_numpy(lines).to(table.device), offsets, weights)


def select(batch: KeyedJaggedTensor, features: Sequence[str]) -> KeyedJaggedTensor:
    """The batch with these keys alone, in this order."""
    if batch.keys() == list(features):
        batch.offset_per_key()  # checks that lengths and values fit
        return batch
    places = batch.index_per_key()
    for feature in features:
        if feature not in places:
            batch[feature]  # raises with the nearest name
    return batch.permute([places[feature] for feature in features])


def host_ids(values: Tensor, table: str) -> Ids:
    """The ids on the host, as int64."""
    if values.is_floating_point() or values.dtype == torch.bool or values.is_complex():
        raise JoyError(
            f"ids are whole numbers, not {str(values.dtype).removeprefix('torch.')}",
            where=f"table '{table}'",
            help="convert the values to torch.int64",
        )
    found: Ids = values.detach().to("cpu", torch.int64).numpy()
    if values.dtype == torch.uint64 and len(found) and found.min() < 0:
        raise JoyError(
            f"id {int(found.min()) + 2**64} is beyond int64",
            where=f"table '{table}'",
            help="ids are int64: from -2^63 to 2^63 - 1",
        )
    return found
