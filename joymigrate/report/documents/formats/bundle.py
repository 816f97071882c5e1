"""A recording: `*.jmb` as a folder or as one tar. Its hashes are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def matches(path: Path, head: bytes) -> bool:
    """A folder with a manifest, a tar, or the manifest's folder by name."""
    return path.suffix == ".jmb" or (path.is_dir() and (path / "manifest.json").is_file())


def read(path: Path) -> dict[str, Any]:
    """What the recording holds, as `verify show --privacy` says it."""
    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.contents import contents, data_in

    found = open_bundle(path)
    return {**contents(found), "privacy": data_in(found)}
