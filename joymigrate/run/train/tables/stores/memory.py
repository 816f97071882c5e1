"""Rows in host memory."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.stores.store import RowFormat, RowStore


class MemoryStore(RowStore):
    """Two matrices by slot."""

    def __init__(self, form: RowFormat) -> None:
        self.form = form
        self.weights, self.state = form.empty(0)

    def reserve(self, slots: int) -> None:
        """Grow to `slots` rows."""
        more = slots - len(self.weights)
        if more > 0:
            weights, state = self.form.empty(more)
            self.weights = torch.cat((self.weights, weights))
            self.state = torch.cat((self.state, state))

    def read(self, ids: Ids, slots: Places) -> tuple[Tensor, Tensor]:
        """Copies of rows."""
        at = torch.from_numpy(slots)
        return self.weights[at], self.state[at]

    def write(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Replace rows."""
        at = torch.from_numpy(slots)
        self.weights[at], self.state[at] = weights, state

    def close(self) -> None:
        """Let go of the memory."""
        self.weights, self.state = self.form.empty(0)
