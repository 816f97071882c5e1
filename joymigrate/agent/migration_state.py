"""Where a migration stands: its ledger, its last journey, and whether that still holds."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.journey.resume import FILE
from joymigrate.journey.running import FILE as RUNNING
from joymigrate.journey.tree import find_changes, snapshot
from joymigrate.language import restore_texts
from joymigrate.ledger import Ledger, Step
from joymigrate.ledger.recovery import is_pending

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Standing:
    """A project's migration as it lies on disk. `journey` is its last document, empty without one;
    `changed` are files that were edited behind it; `running` names the step of one that goes on."""

    root: Path
    steps: tuple[Step, ...] = ()
    rewritten: Step | None = None  # the latest change that is not rolled back
    journey: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    running: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def outcome(self, name: str) -> Mapping[str, Any]:
        """One step of the journey; empty where it did not run."""
        found = (one for one in self.journey.get("journey", ()) if one["name"] == name)
        return next(found, NOTHING)


def read_standing(project: Path) -> Standing:
    """Where the migration of a project stands. Nothing is written."""
    ledger = Ledger.of(project)
    folder = ledger.home / "journey"
    journey = read_object(folder / FILE)
    if journey.get("schema") != "joymigrate.journey/1":
        journey = NOTHING
    files = journey.get("files")
    changed: list[str] = []
    if isinstance(files, Mapping) and Path(str(journey.get("project", ""))).is_dir():
        outputs = frozenset(journey.get("outputs", ()))
        changed = find_changes(files, snapshot(Path(journey["project"])), outputs)
    running = read_object(folder / RUNNING)
    steps = tuple(ledger.steps())
    return Standing(
        ledger.root,
        steps,
        ledger.latest() if steps else None,
        restore_texts(journey) if journey else NOTHING,
        tuple(sorted(changed)),
        running if is_alive(running) else NOTHING,
        is_pending(ledger.root),
    )


def read_object(path: Path) -> Mapping[str, Any]:
    """A JSON object of ours; empty where it can't be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return NOTHING
    return found if isinstance(found, dict) else NOTHING


def is_alive(running: Mapping[str, Any]) -> bool:
    """Whether the process that wrote `running.json` lives on this machine."""
    if running.get("host") != socket.gethostname() or not isinstance(running.get("pid"), int):
        return False
    try:
        os.kill(running["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
