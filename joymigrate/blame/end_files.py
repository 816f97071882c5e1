"""What the processes of a run left about how they ended: files of `watch.py`, else the log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joymigrate.blame.exceptions import (
    FATAL,
    Raised,
    from_document,
    from_fatal,
    from_log,
    is_launcher,
)
from joymigrate.blame.watch import ENVIRONMENT


def prepare(folder: Path) -> dict[str, str]:
    """Empty a folder for the notes of a run; the variables that its processes need."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*-*.*"):
        path.unlink(missing_ok=True)
    return {ENVIRONMENT: str(folder)}


def read_chain(folder: Path | None, log: str = "") -> tuple[Raised, ...]:
    """The exceptions that ended a run, the last one first; empty where nothing was raised.

    The last process to end tells it; where that one says that a program which it started has
    failed, the first of the others.
    """
    notes = sorted(read_notes(folder), key=lambda one: float(one["time"])) if folder else []
    chains = [chain for one in notes if (chain := from_document(one["chain"]))]
    crash = read_crash(folder) if folder else None
    if crash is not None:
        return (crash,)
    if chains and not is_launcher(chains[-1][0]):
        return chains[-1]
    told = from_log(log)
    ranks = [chain for chain in chains if not is_launcher(chain[0])]
    if ranks:
        return min(ranks, key=lambda chain: chain[0].name == "SystemExit")
    return told or (chains[-1] if chains else ())


def read_notes(folder: Path) -> Iterator[dict[str, Any]]:
    """The notes of the processes; one that was cut short counts as none."""
    for path in folder.glob("stop-*.json"):
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue


def is_exit(note: Mapping[str, Any]) -> bool:
    """Whether a process noted that it called `sys.exit`, which the program may have caught."""
    return bool(note["chain"]) and note["chain"][0]["kind"] == "SystemExit"


def read_crash(folder: Path) -> Raised | None:
    """Where a process died in native code; one that had raised died on its way out."""
    raised = {note["pid"] for note in read_notes(folder) if not is_exit(note)}
    for path in sorted(folder.glob("crash-*.txt"), key=os.path.getmtime):
        if path.stem.removeprefix("crash-") in map(str, raised):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found = FATAL.search(text)
        if found:
            return from_fatal(found["what"], text[found.end() :])
    return None
