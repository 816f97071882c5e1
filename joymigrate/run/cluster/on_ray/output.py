"""What a pod writes, whole, on its node's disk: files named by the place of their first byte.

A full file is followed by the next one; the oldest goes when there are too many, and readers are
told how much is missing. A place in the output stays the same whatever goes.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

FILE_BYTES = 16 << 20
FILES = 64  # of one pod: 1 GiB
ENDING = ".log"


class OutputPiece(NamedTuple):
    """Bytes from `start` on; more than asked for when what was asked for is gone."""

    start: int
    data: bytes
    end: int  # the place behind the last byte that there is


def session_folder() -> Path:
    """The folder that Ray gave this cluster on this node; it outlives every process of ours."""
    worker: Any = importlib.import_module("ray._private.worker")
    return Path(worker._global_node.get_session_dir_path()) / "joymigrate"


def folder_of(root: str, job: str, attempt: int, rank: int) -> Path:
    """Where one pod's output lies; `root` is the store's folder, "" for Ray's own."""
    home = Path(root) if root else session_folder()
    return home / "logs" / quote(job, safe="") / str(attempt) / str(rank)


class PodOutput:
    """Appends to a pod's files."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self.file_bytes = file_bytes
        self.files = files
        self.end = end_of(folder)
        self._file = open(folder / name_of(self.end), "ab", buffering=0)  # noqa: SIM115
        self._start = self.end

    def write(self, data: bytes) -> None:
        """Add to the output."""
        self._file.write(data)
        self.end += len(data)
        if self.end - self._start >= self.file_bytes:
            self._file.close()
            self._start = self.end
            self._file = open(self.folder / name_of(self.end), "ab", buffering=0)  # noqa: SIM115
            for path in segments(self.folder)[: -self.files]:
                path.unlink()

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()


def name_of(start: int) -> str:
    """The name of the file that begins at a place."""
    return f"{start:016d}{ENDING}"


def segments(folder: Path) -> list[Path]:
    """The files that are left, oldest first."""
    return sorted(folder.glob(f"*{ENDING}"))


def start_of(path: Path) -> int:
    """The place of a file's first byte."""
    return int(path.name.removesuffix(ENDING))


def end_of(folder: Path) -> int:
    """The place behind the last byte; 0 where nothing was written."""
    files = segments(folder)
    return start_of(files[-1]) + files[-1].stat().st_size if files else 0


def read(folder: str | Path, start: int, limit: int) -> OutputPiece:
    """At most `limit` bytes from a place on; from the oldest that is left where that is gone."""
    files, end = segments(Path(folder)), end_of(Path(folder))
    if not files:
        return OutputPiece(start, b"", 0)
    start = max(start, start_of(files[0]))
    data = b""
    for path in files:
        first = start_of(path)
        at = start + len(data)
        if first <= at < first + path.stat().st_size and len(data) < limit:
            with open(path, "rb") as file:
                file.seek(at - first)
                data += file.read(limit - len(data))
    return OutputPiece(start, data, end)


def tail(folder: str | Path, count: int) -> list[str]:
    """The last lines."""
    data = b""
    for path in reversed(segments(Path(folder))):
        data = path.read_bytes() + data
        if len(lines_of(data)) > count:
            break
    return lines_of(data)[-count:] if count else []


def lines_of(data: bytes) -> list[str]:
    """Lines of output, those that a progress bar writes over itself too."""
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode("utf-8", "replace")
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines
