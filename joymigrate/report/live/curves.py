"""Loss curves that grow: what the journey's two runs print, and the runs of `joymigrate train`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from joymigrate.run.train.run_folder import METRICS, STATUS, RunFolder
from joymigrate.run.train.status import ALIVE, alive

Points = tuple[tuple[float, float], ...]
# Finds (step, loss) in a program's output; the journey's own reader is handed in.
ReadLosses = Callable[[Iterable[str]], list[tuple[int, float]]]

SIDES = ("baseline", "chip")  # train/<side>-log.txt of a journey
DEPTH = 4  # folders below the project in which runs are looked for
MOST_FOLDERS = 4000
MOST_RUNS = 8  # the newest
MOST_POINTS = 400  # of one curve; more are thinned out
AGAIN_S = 5.0  # between two searches for runs
LARGEST = 32 * 2**20  # bytes of a log that are read
LEFT_OUT = {".git", ".joymigrate", ".venv", "venv", "node_modules", "__pycache__"}


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training run: where it lies below the project, its state, its losses over the steps."""

    name: str
    state: str
    losses: Points


class LiveCurves:
    """Finds runs now and then, and reads them when asked."""

    def __init__(self, root: Path, journey: Path, losses: ReadLosses) -> None:
        self.root, self.journey, self.losses = root, journey, losses
        self.folders: list[Path] = []
        self.searched = float("-inf")

    def of_journey(self) -> tuple[tuple[str, Points], ...]:
        """The losses that both sides of the journey's `train` step printed so far."""
        found = []
        for side in SIDES:
            path = self.journey / "train" / f"{side}-log.txt"
            try:
                if path.stat().st_size > LARGEST:
                    continue
                with open(path, encoding="utf-8", errors="replace") as lines:
                    points = self.losses(lines)
            except OSError:
                continue
            if points:
                found.append((side, thin(points)))
        return tuple(found)

    def runs(self) -> tuple[TrainingRun, ...]:
        """Runs with a `metrics.jsonl`, the newest first."""
        if time.monotonic() - self.searched > AGAIN_S:
            self.folders = sorted(run_folders(self.root), key=change_time, reverse=True)[:MOST_RUNS]
            self.searched = time.monotonic()
        read = (read_run(self.root, folder) for folder in self.folders)
        return tuple(run for run in read if run is not None)


def run_folders(root: Path) -> Iterator[Path]:
    """Folders below `root` that hold a `metrics.jsonl`, not too deep and not too many."""
    for seen, (folder, inner, files) in enumerate(os.walk(root)):
        depth = len(Path(folder).relative_to(root).parts)
        inner[:] = sorted(
            name for name in inner if name not in LEFT_OUT and not name.startswith(".")
        )
        if depth >= DEPTH or seen > MOST_FOLDERS:
            inner.clear()
        if METRICS in files:
            yield Path(folder)


def change_time(folder: Path) -> float:
    """When a run wrote last; 0 where its file is gone."""
    try:
        return (folder / METRICS).stat().st_mtime
    except OSError:
        return 0.0


def read_run(root: Path, folder: Path) -> TrainingRun | None:
    """One run; None without a loss. A run whose process is gone says so."""
    try:
        if (folder / METRICS).stat().st_size > LARGEST:
            return None
    except OSError:
        return None
    held = RunFolder(folder)
    rows = [row for row in held.metrics() if isinstance(row, dict)]
    points = [(row["step"], row["loss"]) for row in rows if has_loss(row)]
    if not points:
        return None
    state = ""
    if (folder / STATUS).is_file():
        document = held.status()
        state = str(document.get("state") or "")
        if state in ALIVE and not alive(document):
            state = "died"
    name = folder.relative_to(root).as_posix()
    return TrainingRun(name, state, thin(points))


def has_loss(row: dict[str, object]) -> bool:
    """Whether a line of metrics has a step and a loss."""
    return all(isinstance(row.get(name), int | float) for name in ("step", "loss"))


def thin(points: Iterable[tuple[float, float]]) -> Points:
    """At most `MOST_POINTS` points, evenly spread; the last one is always there."""
    kept = [(float(x), float(y)) for x, y in points]
    if len(kept) <= MOST_POINTS:
        return tuple(kept)
    every = -(-len(kept) // MOST_POINTS)
    return (*kept[:-1:every], kept[-1])
