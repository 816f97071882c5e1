"""A lock that is copied and pickled as a new one: a copy of a table has no threads yet."""

from __future__ import annotations

import threading


class TableLock:
    """`threading.RLock` as a context."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[TableLock], tuple[()]]:
        return TableLock, ()
