"""The hash of a project's files: whether a journey can go on where it stood."""

from __future__ import annotations

import hashlib
from pathlib import Path

# What programs leave behind says nothing about the project.
SUFFIXES = {
    ".py", ".pyi", ".ipynb", ".sh", ".yaml", ".yml", ".json", ".toml", ".txt", ".cfg", ".ini",
    ".cu", ".cuh", ".cpp", ".h", "",
}  # fmt: skip
SKIPPED = {".git", ".joymigrate", "__pycache__", "node_modules", ".venv", "venv", "out", "outputs"}
LARGEST = 4 * 2**20


def tree_hash(root: Path) -> str:
    """SHA-256 over the sorted (path, content) of source and configuration files below `root`."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.suffix not in SUFFIXES or SKIPPED & set(parts) or not path.is_file():
            continue
        if path.stat().st_size > LARGEST:
            continue
        total.update("/".join(parts).encode("utf-8", "surrogateescape") + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
