"""What every store of rows offers. A row is its weights [D] and its optimiser's state [S]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Columns and dtype of the weights, numbers of state (float32)."""

    columns: int
    state: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its state."""
        return self.columns * self.dtype.itemsize + 4 * self.state

    def empty(self, count: int, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
        """Zeros for `count` rows: weights [n, D] and state [n, S]."""
        weights = torch.zeros(count, self.columns, dtype=self.dtype, device=device)
        return weights, torch.zeros(count, self.state, device=device)

    def pack(self, weights: Tensor, state: Tensor) -> list[bytes]:
        """One byte string a row: weights, then state."""
        both = torch.cat((as_bytes(weights), as_bytes(state)), 1).numpy()
        return [row.tobytes() for row in both]

    def unpack(self, rows: list[bytes]) -> tuple[Tensor, Tensor]:
        """Weights [n, D] and state [n, S] of packed rows."""
        if not rows:
            return self.empty(0)
        both = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
        return self.split(both.view(len(rows), self.row_bytes))

    def split(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and state of rows of bytes [n, row_bytes]."""
        edge = self.columns * self.dtype.itemsize
        weights = both[:, :edge].contiguous().view(self.dtype)
        if not self.state:
            return weights, torch.zeros(len(both), 0)
        return weights, both[:, edge:].clone().view(torch.float32)  # aligned anew


def as_bytes(rows: Tensor) -> Tensor:
    """A matrix as bytes, row by row."""
    if not rows.shape[1]:
        return torch.empty(len(rows), 0, dtype=torch.uint8)
    return rows.contiguous().view(torch.uint8)


class RowStore:
    """Rows by slot and id. Only one thread calls a store at a time.

    A store that grows when it is written, or whose rows are durable or gone without a word, leaves
    `reserve`, `remove`, `flush` or `close` as they are here: they do nothing.
    """

    def read(self, ids: Ids, slots: Places) -> tuple[Tensor, Tensor]:
        """Weights [n, D] and state [n, S] of rows that were written before, on the CPU."""
        raise NotImplementedError

    def write(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Replace rows, given on the CPU."""
        raise NotImplementedError

    def reserve(self, slots: int) -> None:
        """Make room for slots below `slots`."""

    def remove(self, ids: Ids, slots: Places) -> None:
        """Give rows up: their slots are used again."""

    def flush(self) -> None:
        """Make everything written durable, where the store is."""

    def close(self) -> None:
        """Let go of files and connections."""


class OutsideStore(RowStore):
    """Rows outside of the process, at the place `where`: such a table is not copied or pickled."""

    where: str

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise JoyError(
            "a table with rows in a file or on a server can't be copied or pickled",
            where=self.where,
            help="keep its rows in memory, or save a checkpoint and open it again",
        )
