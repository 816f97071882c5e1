"""Where rows lie that are not on the device: host memory, a mapped file, LMDB or Redis."""

from __future__ import annotations

from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.stores.store import RowFormat, RowStore


def open_store(kind: str, table: str, form: RowFormat, **options: Any) -> RowStore:
    """The store that `TableOptions.store` names, for one table."""
    scheme, _, rest = kind.partition(":")
    if scheme == "memory" and not rest:
        from joymigrate.run.train.tables.stores.memory import MemoryStore

        return MemoryStore(form)
    if scheme == "file" and rest:
        from joymigrate.run.train.tables.stores.mapped_files import MappedStore

        return MappedStore(form, rest, table)
    if scheme == "lmdb" and rest:
        from joymigrate.run.train.tables.stores.lmdb import LmdbStore

        return LmdbStore(form, rest, table)
    if scheme in ("redis", "rediss", "unix") and rest:
        from joymigrate.run.train.tables.stores.redis import RedisStore

        return RedisStore(form, kind, table, **options)
    raise JoyError(
        f"rows can't be kept in '{kind}'",
        where=f"table '{table}'",
        help="one of memory, file:FOLDER, lmdb:FOLDER, redis://host:port/db",
    )


__all__ = ["RowFormat", "RowStore", "open_store"]
