"""Rows in LMDB, by id: an embedded key-value store that other processes may read meanwhile.

Key: the id, 8 bytes big endian; value: weights, then state (see `RowFormat.pack`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from joymigrate import extras
from joymigrate.errors import JoyError
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.stores.store import OutsideStore, RowFormat

FIRST_BYTES = 1 << 26


class LmdbStore(OutsideStore):
    """One environment for each table."""

    def __init__(self, form: RowFormat, folder: str, table: str) -> None:
        extras.need("rec", "lmdb", what="rows in LMDB")
        import lmdb

        self.form, self.lmdb = form, lmdb
        self.where = str(Path(folder) / table.replace("/", "_"))
        try:
            Path(self.where).mkdir(parents=True, exist_ok=True)
            # Durable when flushed: what a crash loses before is the checkpoint's to bring back.
            self.env: Any = lmdb.open(self.where, map_size=FIRST_BYTES, sync=False)
        except (OSError, lmdb.Error) as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> JoyError:
        return JoyError(
            f"rows can't be kept in LMDB: {error}",
            where=self.where,
            help="free or add space there, or name another folder: store='lmdb:FOLDER'",
        )

    def read(self, ids: Ids, slots: Places) -> tuple[Tensor, Tensor]:
        """Rows by id; one that was written and is gone is an error."""
        with self.env.begin() as transaction:
            found = [transaction.get(key) for key in keys(ids)]
        return self.form.unpack(all_there(found, ids, self.where, self.form))

    def write(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Replace rows, all or none of them."""
        pairs = list(zip(keys(ids), self.form.pack(weights, state), strict=True))
        self._change(lambda cursor: cursor.putmulti(pairs))

    def remove(self, ids: Ids, slots: Places) -> None:
        """Delete rows."""
        gone = keys(ids)
        self._change(lambda cursor: [cursor.delete() for key in gone if cursor.set_key(key)])

    def _change(self, act: Any) -> None:
        while True:
            try:
                with self.env.begin(write=True) as transaction, transaction.cursor() as cursor:
                    act(cursor)
                return
            except self.lmdb.MapFullError:
                self.env.set_mapsize(2 * self.env.info()["map_size"])
            except self.lmdb.Error as error:
                raise self._failed(error) from error

    def flush(self) -> None:
        """Make everything durable."""
        try:
            self.env.sync(True)
        except self.lmdb.Error as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self.env.close()


def keys(ids: Ids) -> list[bytes]:
    """Ids as keys, in the order of numbers for those from 0."""
    packed = ids.astype(">i8").tobytes()
    return [packed[at : at + 8] for at in range(0, len(packed), 8)]


def all_there(found: list[bytes | None], ids: Ids, where: str, form: RowFormat) -> list[bytes]:
    """The rows; an error where one is gone or of another size."""
    for row, number in zip(found, ids, strict=True):
        if row is None:
            raise JoyError(
                f"the row of id {number} was written and is gone",
                where=where,
                help="was the store emptied? load the last checkpoint",
            )
        if len(row) != form.row_bytes:
            raise JoyError(
                f"the row of id {number} has {len(row)} bytes, not {form.row_bytes}",
                where=where,
                help="another table or another optimiser wrote there: use another store",
            )
    return found  # type: ignore[return-value]
