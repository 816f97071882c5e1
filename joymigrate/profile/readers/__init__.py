"""Reads a trace of any known kind into one table; the kind is told by content, not by name.

`read(path)` gives a `Trace`. A new format is one file here and one line in `KINDS`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.profile.readers import (
    ascend_csv,
    chrome,
    execution,
    nsys,
    recorded,
)
from joymigrate.profile.readers.stream import head
from joymigrate.profile.table import Trace

__all__ = ["KINDS", "detect", "read", "read_all"]

KINDS: dict[str, Callable[[Path], Trace]] = {
    "chrome": chrome.read,
    "execution": execution.read,
    "recorded": recorded.read,
    "kernel_details": ascend_csv.read_details,
    "op_statistic": ascend_csv.read_statistic,
    "nsys": nsys.read,
}
SQLITE = b"SQLite format 3\0"
PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
HELP = "docs/profile.md lists what is read; joymigrate profile record makes a recording"
IN_FOLDERS = ("*.json", "*.json.gz", "*.jsonl", "*.jsonl.gz", "*.sqlite")


def detect(path: Path) -> str:
    """The kind of a file: a key of `KINDS`. `JoyError` for one that is none."""
    start = head(path)
    if start.startswith(SQLITE):
        return "nsys"
    if not start.strip():
        raise JoyError("an empty file", where=str(path), help=HELP)
    text = start.decode("utf-8-sig", "replace").lstrip()
    if text.startswith("{"):
        return detect_object(text)
    if text.startswith("["):
        return "chrome"
    if found := detect_table(text):
        return found
    what = "a pickle" if start.startswith(PICKLE) else "neither JSON nor a table that is known"
    raise JoyError(f"not a trace: {what}", where=str(path), help=HELP)


def detect_object(text: str) -> str:
    """The kind of a file that begins with an object."""
    line = text.partition("\n")[0]
    if re.match(r'\{\s*"schema"\s*:\s*"joymigrate\.', line):
        return "recorded"
    if re.search(r'"schema"\s*:\s*"1\.\d', text) and not re.search(r'"traceEvents"', text):
        return "execution"
    if re.search(r'"nodes"\s*:\s*\[', text) and not re.search(r'"traceEvents"', text):
        return "execution"
    return "chrome"


def detect_table(text: str) -> str:
    """The kind of a CSV, from its first line; empty for an unknown one."""
    columns = set(next(csv.reader([text.partition("\n")[0]]), []))
    if columns & set(ascend_csv.TYPE) and columns & set(ascend_csv.DURATION):
        return "kernel_details"
    if columns & set(ascend_csv.TYPE) and columns & set(ascend_csv.TOTAL):
        return "op_statistic"
    return ""


def read(path: Path | str) -> Trace:
    """One file, whatever its kind."""
    path = Path(path)
    if path.is_dir():
        raise JoyError("a folder, not a trace", where=str(path), help="name the files in it")
    if not path.exists():
        raise JoyError("there is no such file", where=str(path))
    return KINDS[detect(path)](path)


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """Several files; a folder stands for the traces in it (one per rank, as profilers write)."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        found = sorted({p for pattern in IN_FOLDERS for p in path.glob(pattern)})
        if not found:
            raise JoyError("no traces in this folder", where=str(path), help=HELP)
        files += found
    return [read(path) for path in files]
