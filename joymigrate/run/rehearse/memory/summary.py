"""One document out of what the processes of a program saw of their device memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joymigrate import settings
from joymigrate.run.rehearse.memory.watch import SETTINGS, WatchedDevice

SCHEMA = "joymigrate.memory/1"


def ask(folder: Path, package: str, device: str) -> None:
    """Prepare a folder for `JOYMIGRATE_MEMORY`; what an earlier run left there is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("process-*.json"):
        old.unlink()
    settings.write(WatchedDevice(package, device), folder / SETTINGS)


def collect(folder: Path, *, rehearsal: bool) -> dict[str, Any]:
    """All processes that used the device, by rank, then by how much they held."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("process-*.json")]
    used = [one for one in found if one["timeline"] or one["peak_bytes"] or one["held"]]

    def order(one: dict[str, Any]) -> tuple[int, int]:
        return (one["rank"] or 0, -max(one["peak_bytes"].values(), default=0))

    return {"schema": SCHEMA, "rehearsal": rehearsal, "processes": sorted(used, key=order)}
