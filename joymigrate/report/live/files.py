"""Which files the live page shows: those below `.joymigrate/`, and those that a step names.

A path that leaves them, by `..` or by a link, is not there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from joymigrate.ledger import FOLDER

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".sarif": "application/json; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
TEXT = {
    ".txt", ".jsonl", ".log", ".md", ".py", ".yaml", ".yml", ".toml", ".xml", ".diff", ".patch",
    ".sh", ".csv", ".cfg", ".ini",
}  # fmt: skip


def resolve_file(root: Path, path: str, named: Iterable[str]) -> Path | None:
    """The file that `path`, below the project's root, may show; None where it may not."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path or "\\" in path:
        return None
    root = root.resolve()
    inside = root / FOLDER if pure.parts[:1] == (FOLDER,) else root
    if inside == root and pure.as_posix() not in set(named):
        return None
    try:
        real = (root / pure).resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    if not real.is_relative_to(inside) or not real.is_file():
        return None
    return real


def open_evidence(path: Path) -> BinaryIO | None:
    """A regular file that is open for reading; None for anything else. Follows no link."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return os.fdopen(handle, "rb")


def kind(path: Path) -> str:
    """The content type. What a browser should not run or draw is plain text, or a download."""
    suffix = path.suffix.lower()
    if suffix in TYPES:
        return TYPES[suffix]
    return "text/plain; charset=utf-8" if suffix in TEXT else "application/octet-stream"
