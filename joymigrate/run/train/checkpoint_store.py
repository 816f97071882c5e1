"""Checkpoints on disk: one folder each, named when whole; `latest`; the oldest removed.

The checkpoint that the newest one calls the best so far (`best` of what goes beside the tensors)
stays with it.

`step-00000010.partial/` is being written. When all ranks are done it gets its manifest (names and
sizes of its files) and, in one rename, its name. Then `latest` is replaced in one step. Whatever
moment a process is killed at, `latest` names a whole checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import sync_folder
from joymigrate.run.train.digests import write_bytes, write_json

SCHEMA = "joymigrate.checkpoint/1"
LATEST = "latest"
STATE = "state.json"
MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8,})$")


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """The folder of one run's checkpoints."""

    folder: Path
    keep: int = 2

    def place(self, number: int) -> Path:
        """Where a whole checkpoint lies."""
        return self.folder / f"step-{number:08d}"

    def partial(self, number: int) -> Path:
        """Where a checkpoint is being written."""
        return self.folder / f"step-{number:08d}.partial"

    def begin(self, number: int, extra: Mapping[str, Any]) -> None:
        """An empty place for a checkpoint, with what goes beside the tensors."""
        place = self.partial(number)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        write_json(place / STATE, {"schema": SCHEMA, "number": number, "extra": dict(extra)})

    def publish(self, number: int) -> int:
        """Name a finished checkpoint, point `latest` at it, remove old ones; returns its bytes."""
        partial, place = self.partial(number), self.place(number)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        write_json(partial / MANIFEST, {"schema": SCHEMA, "files": sizes})
        if place.exists():  # the same step again, after a rollback
            old = place.with_suffix(".partial-old")
            os.replace(place, old)
            shutil.rmtree(old)
        os.replace(partial, place)
        sync_folder(self.folder)
        write_bytes(self.folder / LATEST, f"{place.name}\n".encode())
        self.prune(number)
        return sum(sizes.values())

    def prune(self, newest: int) -> None:
        """Remove all but the last `keep` checkpoints up to `newest`, and the best one."""
        best = self.extra(newest).get("best")
        best = best.get("step") if isinstance(best, dict) else None  # a loop of one's own has any
        numbers = [number for number in self.numbers() if number <= newest]
        for number in numbers[: -self.keep]:
            if number == best:
                continue
            gone = self.place(number).with_suffix(".partial-old")
            os.replace(self.place(number), gone)  # so that half a removal is no checkpoint
            shutil.rmtree(gone)

    def numbers(self) -> list[int]:
        """All named checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (NAME.match(path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def clear_partial(self) -> None:
        """Remove what an interrupted save left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.partial*"):
            shutil.rmtree(path, ignore_errors=True)

    def newest(self, tell: Callable[[str], None] = lambda line: None) -> int | None:
        """The checkpoint that `latest` names, or the newest whole one when that is damaged."""
        named = None
        with contextlib.suppress(OSError):
            match = NAME.match((self.folder / LATEST).read_text().strip())
            named = int(match.group(1)) if match else None
        order = [n for n in reversed(self.numbers()) if named is None or n <= named]
        for number in order:
            reason = self.damage(number)
            if reason is None:
                return number
            tell(f"checkpoint {self.place(number).name} is damaged ({reason}); trying an older one")
        return None

    def damage(self, number: int) -> str | None:
        """Why a checkpoint cannot be used, or None."""
        place = self.place(number)
        try:
            sizes = json.loads((place / MANIFEST).read_text())["files"]
        except (OSError, ValueError, KeyError) as error:
            return f"manifest: {error}"
        for name, size in sizes.items():
            path = place / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, not {size}"
        return None

    def extra(self, number: int) -> dict[str, Any]:
        """What was saved beside the tensors."""
        path = self.place(number) / STATE
        try:
            found = json.loads(path.read_text())["extra"]
        except (OSError, ValueError, KeyError) as error:
            raise JoyError(f"cannot read the checkpoint: {error}", where=str(path)) from None
        return dict(found)
