"""Files that a program makes where it runs: the baseline's other runs have to begin as the first
one did, and leave what it made. No torch.

A program that finds its own checkpoint resumes. New files are set aside while it runs again, and
put back after. A file that was there before and that the program changed stays as it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MOST = 200_000  # files that are looked at; a folder with more is left alone


def list_files(folder: Path, apart: Path) -> set[str] | None:
    """Files below a folder, by path, without those of the bundle; None for too many."""
    found: set[str] = set()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) != apart and name != ".git"]
        found.update(os.path.join(place, name) for name in names)
        if len(found) > MOST:
            return None
    return found


@contextlib.contextmanager
def set_aside(folder: Path, before: set[str] | None, apart: Path) -> Iterator[None]:
    """Without the files that are new since `before`; those that are made in here go again."""
    now = list_files(folder, apart)
    if before is None or now is None:
        yield
        return
    new = sorted(now - before)
    with tempfile.TemporaryDirectory(prefix=".joymigrate-aside-", dir=folder) as room:
        held = {path: os.path.join(room, str(number)) for number, path in enumerate(new)}
        for path, kept in held.items():
            os.rename(path, kept)
        try:
            yield
        finally:
            again = list_files(folder, apart) or set()
            for path in again - before - set(held.values()):
                if not path.startswith(room):
                    os.unlink(path)
            for path, kept in held.items():
                os.makedirs(os.path.dirname(path), exist_ok=True)
                shutil.move(kept, path)
