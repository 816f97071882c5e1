"""The edits of a folder that has not changed since an earlier start: read instead of computed.

A folder is unchanged when its files have the same paths, sizes and times of change, and joymigrate
(its code and its rules, also those of a chip from another package) is the same. There is one kept
file for each folder, chip and set of rules; it is replaced when the folder changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from joymigrate import __version__
from joymigrate.chips import Chip, rules_root
from joymigrate.rewrite import discover
from joymigrate.rewrite.switch.cache import OURS, cache_folder, store

Edits = dict[str, Any]  # by real path: {"sha256": …, "edits": [[start, end, text], …]}


def kept_or(
    compute: Callable[[], Edits],
    folder: Path,
    *,
    chips: Sequence[Chip],
    version: str | None,
    leave: Sequence[str],
) -> Edits:
    """The edits of `folder`, from the cache when they would be the same, else from `compute`."""
    question = [str(folder.resolve()), [chip.name for chip in chips], version, sorted(leave)]
    path = cache_folder() / f"plan-{digest(question)}.json"
    stamp = stamp_of(folder, chips)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["stamp"] == stamp:
            edits: Edits = found["files"]
            return edits
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or cut short
    edits = compute()
    store(path, json.dumps({"stamp": stamp, "files": edits}).encode())
    return edits


def stamp_of(folder: Path, chips: Sequence[Chip]) -> str:
    """What changes when any file of the folder, of joymigrate or of the chips' data does."""
    root = folder if folder.is_dir() else folder.parent
    files, _ = discover.files([folder], root)
    ours = [
        *Path(OURS).glob("rewrite/**/*.py"),
        *Path(OURS).glob("chips/*.py"),
        *rules_root().rglob("*.*"),
        *(path for chip in chips for path in chip.folder.rglob("*.*")),
    ]
    return digest([__version__, *states(file.path for file in files), *states(sorted(ours))])


def states(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Path, size in bytes and time of change in ns of every file that can be asked."""
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return found


def digest(value: Any) -> str:
    """sha256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
