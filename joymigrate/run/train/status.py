"""What a run folder says about a run: state, figures, the loss over the steps."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.run_folder import CHECKPOINTS, STATUS, RunFolder

ALIVE = ("starting", "running")


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run. `document` is status.json with a state that was looked at again."""

    path: Path
    document: dict[str, Any]
    metrics: Sequence[dict[str, Any]]
    checkpoints: Sequence[int]

    @property
    def state(self) -> str:
        """starting, running, finished, stopped, failed, or died."""
        return str(self.document.get("state", "unknown"))

    def curve(self) -> tuple[list[int], list[float]]:
        """Steps and losses, where the loss is a number."""
        known = [(m["step"], m["loss"]) for m in self.metrics if m.get("loss") is not None]
        return [step for step, _ in known], [loss for _, loss in known]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **self.document,
            "path": str(self.path),
            "lines": len(self.metrics),
            "checkpoints": list(self.checkpoints),
        }


def status(path: Path) -> RunStatus:
    """The status of one run; `JoyError` when the folder is none."""
    folder = RunFolder(path)
    document = folder.status()
    if not document:
        raise JoyError(
            "not a run folder: it has no status.json",
            where=str(path),
            help="joymigrate train JOB.yaml makes runs/NAME",
        )
    if document.get("state") in ALIVE and not alive(document):
        document["state"] = "died"
    return RunStatus(
        path, document, folder.metrics(), CheckpointStore(path / CHECKPOINTS).numbers()
    )


def alive(document: dict[str, Any]) -> bool:
    """Whether the run's first process is there; runs of other machines are taken at their word."""
    if document.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(document["pid"]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, KeyError, ValueError):
        return True
    return True


def runs_below(folder: Path) -> list[Path]:
    """Run folders in a folder, or the folder itself when it is one."""
    if (folder / STATUS).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{STATUS}"))
    if not found:
        raise JoyError(
            "no run there",
            where=str(folder),
            help="name a run folder, or a folder of run folders",
        )
    return found
