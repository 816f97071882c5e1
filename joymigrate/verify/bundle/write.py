"""Writes what one process recorded: whole files only, and a manifest that names what is there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = "joymigrate.bundle/1"
RANK_SCHEMA = "joymigrate.bundle-rank/1"
MANIFEST = "manifest.json"
OUTPUTS = "outputs.json"  # what the program wrote


def to_bytes(value: Any) -> bytes:
    """JSON on disk."""
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def entry(data: bytes) -> dict[str, Any]:
    """What a manifest says of one file."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def write_whole(path: Path, data: bytes) -> None:
    """A reader sees the old file or the whole new one, also after a crash."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def before(name: str) -> str:
    """Where the last committed version of a file lies while the next one is not committed."""
    return f".{name}.before"


class RankWriter:
    """`rank-N/`. A file counts once `commit` has written the manifest that names it; till then the
    version that the last manifest names is kept beside it."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = dict(facts)
        self.files: dict[str, dict[str, Any]] = {}
        self.committed: set[str] = set()  # named by the manifest, and not written anew since
        self.kept: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, data: bytes) -> None:
        """Write one file; one that says the same as before stays as it is."""
        made = entry(data)
        if name in self.committed and self.files[name] == made:
            return
        if name in self.committed:
            os.rename(self.folder / name, self.folder / before(name))
            self.committed.discard(name)
            self.kept.add(name)
        write_whole(self.folder / name, data)
        self.files[name] = made

    def remove(self, name: str) -> None:
        """Take one file back that no manifest names."""
        self.files.pop(name, None)
        (self.folder / name).unlink(missing_ok=True)

    def add_json(self, name: str, value: Any) -> None:
        """Write one JSON file."""
        self.add(name, to_bytes(value))

    def commit(self) -> None:
        """Name everything that was written so far."""
        manifest = {"schema": RANK_SCHEMA, **self.facts, "files": self.files}
        write_whole(self.folder / MANIFEST, to_bytes(manifest))
        for name in self.kept:
            (self.folder / before(name)).unlink(missing_ok=True)
        self.committed, self.kept = set(self.files), set()


def versions(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Files of which the version that the manifest names lies beside the next one: the program was
    killed between writing that and the next manifest."""
    named = manifest.get("files")
    found = {}
    for name, expected in named.items() if isinstance(named, dict) else ():
        beside = folder / before(name)
        if beside.is_file() and entry(beside.read_bytes()) == expected:
            found[name] = before(name)
    return found


def create(path: Path, facts: Mapping[str, Any]) -> None:
    """Begin a bundle: its folder and a manifest that says it is not complete."""
    path.mkdir(parents=True)
    write_whole(path / MANIFEST, to_bytes({"schema": SCHEMA, "complete": False, **facts}))


def complete(
    path: Path, facts: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """End a bundle: the manifest with the hash of every file that the ranks' manifests name.

    `outputs` is what the program wrote (`written_files.collect`).
    """
    files: dict[str, Any] = {}
    ranks = sorted(path.glob("rank-*"), key=lambda p: int(p.name[5:]))
    for folder in ranks:
        inner = folder / MANIFEST
        if not inner.is_file():
            continue
        data = inner.read_bytes()
        for name, earlier in versions(folder, json.loads(data)).items():
            os.replace(folder / earlier, folder / name)
        files[f"{folder.name}/{MANIFEST}"] = entry(data)
        named = json.loads(data)["files"]
        files.update({f"{folder.name}/{name}": value for name, value in named.items()})
    if outputs is not None:
        data = to_bytes(outputs)
        write_whole(path / OUTPUTS, data)
        files[OUTPUTS] = entry(data)
    manifest = {
        "schema": SCHEMA,
        "complete": True,
        **facts,
        "ranks": [int(folder.name[5:]) for folder in ranks if (folder / MANIFEST).is_file()],
        "files": files,
    }
    write_whole(path / MANIFEST, to_bytes(manifest))
    return manifest
