"""From a batch to distinct ids: what a collection asks of its tables for one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.initialise import Ids
from joymigrate.run.train.tables.jagged import KeyedJaggedTensor, to_offsets
from joymigrate.run.train.tables.table import Table


@dataclass
class Route:
    """The ids of one table in one batch, each once.

    `ids` [U] in the order of their first sighting, `counts` [U]; `inverse` [T] finds the row of
    every value; `offsets` [k·B + 1] are the bags of the table's k features; `weights` [T] or None.
    """

    ids: Ids
    counts: Places
    inverse: Tensor
    offsets: Tensor
    weights: Tensor | None

    @property
    def values(self) -> int:
        """Number of ids before repeated ones were removed."""
        return int(self.inverse.numel())


def route(
    batch: KeyedJaggedTensor, features: Sequence[str], table: str, device: torch.device,
    weighted: bool,
) -> Route:  # fmt: skip
    """Distinct ids of the features that read one table."""
    part = select(batch, features)
    ids = host_ids(part.values(), table)
    inverse, distinct = pd.factorize(ids)
    counts = np.bincount(inverse, minlength=len(distinct))
    offsets = to_offsets(part.lengths().to(torch.int64))
    weights = part.weights() if weighted else None
    return Route(
        np.ascontiguousarray(distinct, dtype=np.int64),
        counts.astype(np.int64),
        torch.from_numpy(inverse.astype(np.int64, copy=False)).to(device, non_blocking=True),
        offsets.to(device, non_blocking=True),
        None if weights is None else weights.to(device, non_blocking=True),
    )


def route_lines(
    batch: KeyedJaggedTensor, features: Sequence[str], table: Table, weighted: bool
) -> Route | None:
    """The lines of every value in the table's matrix, where all are there: nothing is removed."""
    part = select(batch, features)
    lines = table.lines_of(host_ids(part.values(), table.name))
    if lines is None:
        return None
    none = np.zeros(0, dtype=np.int64)
    offsets = part.offsets().to(table.device, torch.int64)
    weights = part.weights().to(table.device) if weighted else None
    return Route(none, none, torch.from_numpy(lines).to(table.device), offsets, weights)


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
    return found
