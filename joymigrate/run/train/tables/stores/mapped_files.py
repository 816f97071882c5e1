"""Rows in memory-mapped files: weights and state by slot. The operating system keeps hot pages.

Space is reserved when the files grow, so that a full disk is an error then, and not a crash of the
process at some later write. The files belong to one running table: what lasts is a checkpoint.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.stores.store import OutsideStore, RowFormat

NUMBERS = itertools.count()  # of this process's files


class MappedStore(OutsideStore):
    """One file, rows packed as weights and state, beside other tables' in a folder."""

    def __init__(self, form: RowFormat, folder: str, table: str) -> None:
        self.form = form
        # Two tables of one name may be in one folder: a model and a copy of it.
        number = f"{os.getpid()}.{next(NUMBERS)}"
        self.path = Path(folder) / f"{table.replace('/', '_')}.{number}.rows"
        self.where = str(self.path)
        self.slots = 0
        self.rows = np.zeros((0, form.row_bytes), dtype=np.uint8)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> JoyError:
        return JoyError(
            f"rows can't be kept in a file: {error.strerror}",
            where=self.where,
            help="free or add space there, or name another folder: store='file:FOLDER'",
        )

    def reserve(self, slots: int) -> None:
        """Grow the file, with space on the disk."""
        if slots <= self.slots:
            return
        size = self.form.row_bytes
        try:
            os.posix_fallocate(self.file, self.slots * size, (slots - self.slots) * size)
        except OSError as error:
            raise self._failed(error) from error
        self.slots = slots
        self.rows = np.memmap(self.path, dtype=np.uint8, mode="r+", shape=(slots, size))

    def read(self, ids: Ids, slots: Places) -> tuple[Tensor, Tensor]:
        """Copies of rows."""
        return self.form.split(torch.from_numpy(self.rows[slots]))

    def write(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Replace rows."""
        edge = self.form.columns * self.form.dtype.itemsize
        self.rows[slots, :edge] = weights.contiguous().view(torch.uint8).numpy()
        if self.form.state:
            self.rows[slots, edge:] = state.contiguous().view(torch.uint8).numpy()

    def flush(self) -> None:
        """Write the pages out."""
        if isinstance(self.rows, np.memmap):
            self.rows.flush()

    def close(self) -> None:
        """Remove the file."""
        self.rows = np.zeros((0, self.form.row_bytes), dtype=np.uint8)
        if self.file >= 0:
            os.close(self.file)
            self.path.unlink(missing_ok=True)
            self.file = -1
