"""State dictionaries without the rows of tables, for checkpoints that save them themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LEFT_OUT: ContextVar[bool] = ContextVar("rows_left_out", default=False)


@contextmanager
def without_rows() -> Iterator[None]:
    """`state_dict` without the rows of tables, for a checkpoint that saves them itself."""
    token = LEFT_OUT.set(True)
    try:
        yield
    finally:
        LEFT_OUT.reset(token)
