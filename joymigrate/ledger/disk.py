"""Writing files so that they survive a crash: content first, then the name, then the folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THREADS = 8  # fsync waits for the disk; several at once share a journal commit


def write_durably(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file and flush it to the disk. `mode`: permission bits, whatever the umask says."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0))
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(handle, mode)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(files: Mapping[Path, tuple[bytes, int | None]]) -> None:
    """Write many files durably: path to content and permission bits."""
    todo = [(path, data, mode) for path, (data, mode) in files.items()]
    if len(todo) <= THREADS:
        for item in todo:
            write_durably(*item)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda item: write_durably(*item), todo):
            pass
