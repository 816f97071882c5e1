"""A lock file: every part that decides whether programs run here, with hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip

SCHEMA = "joymigrate.environment-lock/1"


def lock(environment: Mapping[str, Any], chip: Chip) -> dict[str, Any]:
    """The document: versions, the hash of each distribution's list of files, the SDK's and
    driver's versions, and the hash of the table they were judged by."""
    packages = {
        name: {"version": version, "sha256": files_hash(name)}
        for name, version in sorted(environment["packages"].items())
        if version
    }
    matrix = chip.matrix().path or str(chip.folder / "versions.yaml")
    sdk, driver = environment.get("sdk") or {}, environment.get("driver") or {}
    return {
        "schema": SCHEMA,
        "chip": chip.name,
        "recorded": environment["recorded"],
        "python": environment["machine"]["python"],
        "arch": environment["machine"]["arch"],
        "packages": packages,
        "sdk": {"version": sdk.get("version"), "addons": sdk.get("addons") or {}},
        "driver": driver.get("version"),
        "judged_by": {"file": Path(matrix).name, "sha256": file_hash(Path(matrix))},
    }


def differences(locked: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was locked, one sentence each."""
    found = []
    for name in sorted({*locked["packages"], *now["packages"]}):
        was, is_now = locked["packages"].get(name), now["packages"].get(name)
        if was != is_now:
            old = was["version"] if was else "not installed"
            new = is_now["version"] if is_now else "not installed"
            same = " (other files)" if old == new else ""
            found.append(f"{name}: locked {old}, here {new}{same}")
    for key in ("python", "arch", "driver"):
        if locked.get(key) != now.get(key):
            found.append(f"{key}: locked {locked.get(key)}, here {now.get(key)}")
    if locked["sdk"].get("version") != now["sdk"].get("version"):
        found.append(f"SDK: locked {locked['sdk'].get('version')}, here {now['sdk']['version']}")
    return found


def files_hash(name: str) -> str:
    """SHA-256 of a distribution's RECORD, which holds the hash of every file; empty without one."""
    try:
        text = metadata.distribution(name).read_text("RECORD")
    except metadata.PackageNotFoundError:
        return ""
    return hashlib.sha256("\n".join(sorted((text or "").splitlines())).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
