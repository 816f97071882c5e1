"""One writer at a time per ledger: an advisory lock that dies with its process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger.place import unwritable

WAIT_S = 120.0
POLL_S = 0.02


@contextmanager
def hold_lock(home: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the ledger's lock. Waits for another joymigrate, then gives up naming its process.

    The kernel frees the lock when the holder dies, however it dies.
    """
    path = home / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        deadline = time.monotonic() + wait_s
        while not try_lock(handle):
            if time.monotonic() > deadline:
                os.lseek(handle, 0, os.SEEK_SET)
                holder = os.read(handle, 32).decode("ascii", "replace").strip()
                raise JoyError(
                    f"another joymigrate (process {holder or 'unknown'}) is using this ledger",
                    where=str(path),
                    help="wait for it to end, or end it",
                )
            time.sleep(POLL_S)
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"{os.getpid()}\n".encode("ascii"))
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool:
        """Take the lock if it is free."""
        try:
            os.lseek(handle, 1024, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
