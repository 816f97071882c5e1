"""Parquet files that this process holds open."""

from __future__ import annotations

import functools
from typing import Any

from joymigrate.errors import JoyError


@functools.lru_cache(maxsize=64)
def opened(path: str) -> Any:
    """An open Parquet file of this process."""
    from pyarrow import ArrowInvalid, parquet

    try:
        return parquet.ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        raise JoyError(f"not a Parquet file: {error}", where=path) from None
