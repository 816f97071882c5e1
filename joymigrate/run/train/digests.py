"""Content hashes of data files, remembered by size and time so that a second start is fast."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from joymigrate.files import replace_file

MEMORY = "digests.json"


def of_file(path: Path, begin: int = 0, end: int | None = None) -> str:
    """sha256 of a file's content, or of its bytes `begin … end - 1`."""
    with path.open("rb") as file:
        file.seek(begin)
        left = os.fstat(file.fileno()).st_size - begin if end is None else end - begin
        made = hashlib.sha256()
        while piece := file.read(min(1 << 20, left)):
            made.update(piece)
            left -= len(piece)
    return made.hexdigest()


def of_files(files: Sequence[Path], folder: Path | None = None) -> list[str]:
    """sha256 of each file; see `remember`."""
    return [remember(path, partial(of_file, path), folder) for path in files]


def remember(path: Path, find: Callable[[], str], folder: Path | None, what: str = "") -> str:
    """A digest of a file, or of `what` of it; `folder` keeps it for this size, time and inode."""
    state = os.stat(path)
    mark = [state.st_size, state.st_mtime_ns, state.st_ino]
    name = f"{what}{path.resolve()}"
    known = recall(folder).get(name)
    if known is not None and known["state"] == mark:
        return str(known["sha256"])
    found = find()
    if folder is not None:
        write_json(folder / MEMORY, recall(folder) | {name: {"state": mark, "sha256": found}})
    return found


def recall(folder: Path | None) -> dict[str, Any]:
    """What is remembered; nothing where the file cannot be read."""
    try:
        loaded = json.loads((folder / MEMORY).read_text()) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def of_text(*parts: str) -> str:
    """sha256 of texts, with their borders."""
    made = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        made.update(f"{len(data)}:".encode() + data)
    return made.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a small file in one step and make it durable: a reader sees the old or the new one."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, durable=True)
