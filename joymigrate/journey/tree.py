"""The files of a project with their hashes: what changed between two calls, and by whom."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

CODE = {
    ".py", ".pyi", ".ipynb", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini",
    ".cu", ".cuh", ".cpp", ".h",
}  # fmt: skip
# Configuration, or what a program leaves behind.
DATA = {".json", ".txt", ""}
SKIPPED = {".git", ".joymigrate", "__pycache__", "node_modules", ".venv", "venv", "out", "outputs"}
LARGEST = 4 * 2**20


def snapshot(root: Path) -> dict[str, str]:
    """POSIX path to SHA-256 of the source and configuration files below `root`."""
    found: dict[str, str] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix not in CODE | DATA:
                continue
            try:
                if not path.is_file() or path.stat().st_size > LARGEST:
                    continue
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:
                continue  # it went while we looked, or can't be read
            found[path.relative_to(root).as_posix()] = digest
    return found


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Paths that were added, changed or removed."""
    return {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}


def find_changes(
    before: Mapping[str, str], now: Mapping[str, str], outputs: Collection[str]
) -> list[str]:
    """What somebody else changed since `before`.

    Files in `outputs` are the program's own, and so are new files that are no code: a run that
    was cut short leaves them behind.
    """
    return sorted(
        path
        for path in differing(before, now)
        if path not in outputs and (path in before or Path(path).suffix in CODE)
    )


def find_written(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The files that a program wrote while it ran; code is never counted as such."""
    return {path for path in differing(before, now) if Path(path).suffix in DATA}


def total(files: Mapping[str, str]) -> str:
    """One hash for all files."""
    text = json.dumps(sorted(files.items()), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
