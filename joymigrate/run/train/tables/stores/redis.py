"""Rows in Redis, by id, so that serving reads what training writes.

Key `<table>:<id>` (the id in decimal); value: weights, then state (see `RowFormat.pack`). A server
that goes away is waited for: reads and writes name whole rows, so doing one twice does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from joymigrate import extras
from joymigrate.errors import JoyError
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.stores.lmdb import all_there
from joymigrate.run.train.tables.stores.store import OutsideStore, RowFormat

Result = TypeVar("Result")
PORTION = 4096  # keys in one command: a long one stops the server for everyone
PAUSE_S = (0.05, 2.0)


class RedisStore(OutsideStore):
    """Rows of one table on a server. `patience_s`: how long a server that is away is waited for."""

    def __init__(self, form: RowFormat, url: str, table: str, patience_s: float = 30.0) -> None:
        extras.need("rec", "redis", what="rows in Redis")
        import redis

        self.form, self.patience_s = form, patience_s
        self.where = url.rpartition("@")[2]
        self.prefix = f"{table}:".encode()
        self.away = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
        self.refused = redis.exceptions.RedisError
        try:
            self.client: Any = redis.Redis.from_url(url, socket_timeout=30)
        except ValueError as error:
            raise self._failed(error) from error
        self._do(self.client.ping)  # now, and not when the cache is full for the first time

    def _failed(self, error: BaseException) -> JoyError:
        return JoyError(
            f"rows can't be kept in Redis: {error}",
            where=self.where,
            help="start the server, look at its memory and log, or name another store",
        )

    def _do(self, act: Callable[[], Result]) -> Result:
        until, pause = time.monotonic() + self.patience_s, PAUSE_S[0]
        while True:
            try:
                return act()
            except self.away as error:
                if time.monotonic() + pause > until:
                    raise self._failed(error) from error
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_S[1])
            except self.refused as error:
                raise self._failed(error) from error

    def _keys(self, ids: Ids) -> list[bytes]:
        return [self.prefix + str(number).encode() for number in ids.tolist()]

    def read(self, ids: Ids, slots: Places) -> tuple[Tensor, Tensor]:
        """Rows by id; one that was written and is gone is an error."""
        names = self._keys(ids)
        found: list[bytes | None] = []
        for at in range(0, len(names), PORTION):
            some = names[at : at + PORTION]
            found += self._do(lambda some=some: self.client.mget(some))  # type: ignore[misc]
        return self.form.unpack(all_there(found, ids, self.where, self.form))

    def write(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Replace rows."""
        pairs = list(zip(self._keys(ids), self.form.pack(weights, state), strict=True))
        for at in range(0, len(pairs), PORTION):
            some = dict(pairs[at : at + PORTION])
            self._do(lambda some=some: self.client.mset(some))  # type: ignore[misc]

    def remove(self, ids: Ids, slots: Places) -> None:
        """Delete rows."""
        names = self._keys(ids)
        for at in range(0, len(names), PORTION):
            some = names[at : at + PORTION]
            self._do(lambda some=some: self.client.unlink(*some))  # type: ignore[misc]

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
