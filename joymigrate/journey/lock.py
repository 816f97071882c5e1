"""One journey at a time in a project. The kernel frees the lock when its holder dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger.lock import try_lock


@contextmanager
def hold_journey(folder: Path) -> Iterator[None]:
    """Hold the journey in `folder`, or refuse at once, naming the process that holds it."""
    path = folder / "lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not try_lock(handle):
            holder = os.read(handle, 32).decode("ascii", "replace").strip()
            raise JoyError(
                f"another `joymigrate migrate` (process {holder or 'unknown'}) is at work here",
                where=str(folder.parent.parent),
                help="wait for it to end, or end it: what it has finished is kept",
            )
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode("ascii"))
        yield
    finally:
        os.close(handle)
