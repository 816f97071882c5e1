"""Parquet files that this process holds open."""

from __future__ import annotations

import functools
import threading
from typing import Any

from joymigrate.errors import JoyError


def open_file(path: str) -> Any:
    """An open Parquet file of this thread: one reader does not serve two threads at once."""
    return opened_by(path, threading.get_ident())


@functools.lru_cache(maxsize=256)
def opened_by(path: str, thread: int) -> Any:
    """A file that one thread reads."""
    from pyarrow import ArrowInvalid, parquet

    try:
        return parquet.ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        raise JoyError(f"not a Parquet file: {error}", where=path) from None
