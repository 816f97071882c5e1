"""Reads what a project holds just now: its ledger, its journey, its training runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.ledger import Ledger, StepState
from joymigrate.report.live.curves import LiveCurves, Points, ReadLosses, TrainingRun
from joymigrate.run.train.status import alive

RUNNING = "running.json"
JOURNEY = "journey.json"
TAIL_LINES = 6
TAIL_BYTES = 8192
MOST_EVIDENCE = 12  # links of one step
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and cursor movements of a terminal


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of the ledger. `tree` says whether the files still have it; `evidence` are paths
    below the project's root."""

    id: str
    time: str
    kind: str
    chip: str
    about: str
    verdict: str
    stage: str
    grade: str
    tree: str
    writes: bool
    summary: str
    command: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProjectView:
    """A project at one moment. Two that are equal look the same on the page.

    `journey` is its `joymigrate.journey/1` document, `running` its `joymigrate.running/1` one
    (None while nothing runs), `tail` the last lines that the running step printed.
    """

    name: str
    root: str
    rows: tuple[StepRow, ...] = ()
    journey: Mapping[str, Any] | None = None
    running: Mapping[str, Any] | None = None
    tail: str = ""
    losses: tuple[tuple[str, Points], ...] = ()
    runs: tuple[TrainingRun, ...] = ()
    trouble: str = ""


class LiveProject:
    """Looks at one project, as often as asked. `losses` finds (step, loss) in what one prints."""

    def __init__(self, path: Path, losses: ReadLosses) -> None:
        self.ledger = Ledger.of(path)
        self.folder = self.ledger.home / "journey"
        self.curves = LiveCurves(self.ledger.root, self.folder, losses)

    def look(self) -> ProjectView:
        """What is there now. A ledger that can't be read is said, not raised."""
        rows: tuple[StepRow, ...] = ()
        trouble = ""
        try:
            rows = tuple(row(self.ledger, state) for state in self.ledger.states())
        except JoyError as error:
            trouble = str(error)
        running = self.running()
        return ProjectView(
            name=self.ledger.root.name,
            root=str(self.ledger.root),
            rows=rows,
            journey=document(self.folder / JOURNEY, "joymigrate.journey/1"),
            running=running,
            tail=tail(newest_log(self.folder / str(running["step"]))) if running else "",
            losses=self.curves.of_journey(),
            runs=self.curves.runs(),
            trouble=trouble,
        )

    def running(self) -> Mapping[str, Any] | None:
        """The step that a living process is at; one of another machine is taken at its word."""
        found = document(self.folder / RUNNING, "joymigrate.running/1")
        if found is None:
            return None
        return found if alive(dict(found)) else None


def row(ledger: Ledger, state: StepState) -> StepRow:
    """One step as a row."""
    step = state.step
    fate = state.tree
    if state.rolled_back_by:
        fate = Text("rolled back by {step}", step=state.rolled_back_by)
    elif state.superseded_by:
        fate = Text("superseded by {step}", step=state.superseded_by)
    return StepRow(
        id=step.id,
        time=step.time,
        kind=Text("rollback of {step}", step=step.undoes) if step.undoes else step.kind,
        chip=step.chip or "",
        about=step.subject.name if step.subject else "",
        verdict=step.verdict or str(step.details.get("result") or ""),
        stage=step.stage or "",
        grade=step.grade or str(step.details.get("grade") or ""),
        tree=fate,
        writes=state.writes,
        summary=str(step.details.get("summary") or step.details.get("reason") or ""),
        command=step.command,
        evidence=evidence(ledger, step.id, [file.path for file in step.outputs]),
    )


def evidence(ledger: Ledger, step: str, outputs: list[str]) -> tuple[str, ...]:
    """What a step left behind, below the root: its artefacts, then the files it named."""
    folder = ledger.folder(step)
    names = [path for path in sorted(folder.glob("*")) if path.is_file()]
    found = [path.relative_to(ledger.root).as_posix() for path in names]
    return tuple(dict.fromkeys([*found, *outputs]))[:MOST_EVIDENCE]


def document(path: Path, schema: str) -> Mapping[str, Any] | None:
    """A JSON document of one schema; None where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == schema else None


def newest_log(folder: Path) -> Path | None:
    """The text file in a step's folder that was written last."""
    times = {}
    for path in folder.glob("*.txt"):
        try:
            times[path] = path.stat().st_mtime_ns
        except OSError:
            continue
    return max(times, key=lambda path: times[path], default=None)


def tail(path: Path | None) -> str:
    """The last lines of a file."""
    if path is None:
        return ""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n")]
    shown = [ESCAPES.sub("", line) for line in lines]
    return "\n".join([line for line in shown if line.strip()][-TAIL_LINES:])
