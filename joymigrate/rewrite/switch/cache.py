"""Where the switch keeps what it made of files, between runs."""

from __future__ import annotations

import os
from pathlib import Path

OURS = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..")) + os.sep


def cache_folder() -> Path:
    """Where compiled rewritten files are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "joymigrate" / "switch"


def store(path: Path, data: bytes) -> None:
    """Keep bytes under a name, atomically; a cache that can't be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        return
