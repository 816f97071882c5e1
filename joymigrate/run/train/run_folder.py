"""A run's folder: the job as it runs, metrics, status, checkpoints and the exported model."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from joymigrate.errors import JoyError
from joymigrate.run.train.digests import write_bytes, write_json
from joymigrate.run.train.job import Job
from joymigrate.schema import read

JOB, METRICS, STATUS, STOP = "job.json", "metrics.jsonl", "status.json", "stop"
EVALUATIONS = "evaluations.jsonl"
CHECKPOINTS, MODEL, BOARD = "checkpoints", "model", "tensorboard"
SAMPLES = "samples"
QUIET = "JOYMIGRATE_TRAIN_QUIET"  # set: no progress
ACCEPT_DATA = "JOYMIGRATE_TRAIN_ACCEPT_DATA"  # set: go on with data that changed
LEFT_OUT = "left_out.jsonl"  # samples of steps that led astray
PUBLISHED = "published"  # versions of a model that learns from a stream
ALIGNMENT = "alignment.json"  # which modules compute with other operators; for `verify --map`
OURS = (JOB, METRICS, EVALUATIONS, STATUS, STOP, CHECKPOINTS, MODEL, BOARD, ALIGNMENT, SAMPLES,
        LEFT_OUT, PUBLISHED)  # fmt: skip
SCHEMA = "joymigrate.run/1"
# Save and stop; a scheduler that starts the job anew with another number of processes sends USR1.
ASK_TO_STOP = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
)
# A run that continues must be about the same thing.
SAME = ("model", "data", "tokenizer", "task", "method", "seed")


LOCK = "run.lock"
HELD_S = 60.0  # for a run that is ending
OPEN_LOCKS: set[IO[str]] = set()


def close_locks() -> None:
    """A process that user code forks has no part in the run, and may outlive it."""
    for file in OPEN_LOCKS:
        file.close()
    OPEN_LOCKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=close_locks)


class RunHeldError(JoyError):
    """Another process writes to the folder of a run."""


def is_locked(file: IO[str]) -> bool:
    """Whether this process has the file's lock now, or the file system knows none."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run, and what is read and written there."""

    path: Path

    def begin(
        self, job: Job, *, fresh: bool, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        """Make the folder, or continue in it when it holds the same job."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.held(tell):
            self.write_job(job, fresh=fresh)

    @contextlib.contextmanager
    def held(self, tell: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """No other run writes here meanwhile; `RunHeldError` where one does for `HELD_S` yet.

        Processes of a command that was killed may train on without it.
        """
        with (self.path / LOCK).open("a+") as file:
            until, told = time.monotonic() + HELD_S, False
            while not is_locked(file):
                file.seek(0)
                who = file.read().strip() or "another process"
                if time.monotonic() > until:
                    raise RunHeldError(
                        f"{who} trains in this run",
                        where=str(self.path),
                        help="let it end, or kill it; or name another folder: --set run=FOLDER",
                    )
                if not told:
                    tell(f"waiting for {who}, which trains in this run")
                told = True
                time.sleep(0.2)
            file.truncate(0)
            file.write(f"process {os.getpid()} of {socket.gethostname()}\n")
            file.flush()
            OPEN_LOCKS.add(file)
            try:
                yield
            finally:
                OPEN_LOCKS.discard(file)

    def write_job(self, job: Job, *, fresh: bool) -> None:
        """The job, in a folder without what was there, or with what it goes on from."""
        if fresh:
            for name in OURS:
                place = self.path / name
                shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        (self.path / STOP).unlink(missing_ok=True)
        document = dataclasses.asdict(job)
        if (self.path / CHECKPOINTS).is_dir() and (self.path / JOB).is_file():
            self.compare(document)
        write_json(self.path / JOB, {"schema": "joymigrate.job/1", **document})

    def wait_for(self, job: Job) -> None:
        """Until the first process has written this job; others of its group may be faster."""
        asked = json.loads(json.dumps({"schema": "joymigrate.job/1", **dataclasses.asdict(job)}))
        until = time.monotonic() + HELD_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError):
                if json.loads((self.path / JOB).read_text()) == asked:
                    return
            time.sleep(0.1)

    def compare(self, document: dict[str, Any]) -> None:
        """Refuse to continue another job's run."""
        old = json.loads(json.dumps(dataclasses.asdict(self.job())))
        new = json.loads(json.dumps(document))
        for key in SAME:
            if old[key] != new[key]:
                raise JoyError(
                    f"this run was started with another '{key}'",
                    where=str(self.path / JOB),
                    help="--fresh starts anew in this folder; name or run chooses another",
                )

    def job(self) -> Job:
        """The job as it was started."""
        try:
            raw = json.loads((self.path / JOB).read_text())
        except (OSError, ValueError):
            raise JoyError(
                "not a run folder", where=str(self.path), help="it has no job.json"
            ) from None
        folder = raw.pop("folder", ".")
        raw["task"] = {"name": raw["task"]["name"], **raw["task"]["options"]}
        return dataclasses.replace(read(Job, raw, str(self.path / JOB)), folder=folder)

    def report(self, **changes: Any) -> None:
        """Update status.json in one step."""
        now = self.status()
        now.update(changes)
        now.update(schema=SCHEMA, updated=time.time(), pid=os.getpid(), host=socket.gethostname())
        write_json(self.path / STATUS, now)

    def status(self) -> dict[str, Any]:
        """What status.json says; empty where there is none."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / STATUS).read_text())
            return found if isinstance(found, dict) else {}
        return {}

    def cut(self, step: int) -> None:
        """Drop what was written behind `step`: the run goes on from there."""
        names = (METRICS, EVALUATIONS)
        for path in (*(self.path / n for n in names), *(self.path / SAMPLES).glob("rank*.jsonl")):
            if path.is_file():
                kept = [line for line in read_lines(path) if line["step"] <= step and step]
                write_bytes(path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_lines(self.path / METRICS)

    def consumed(self, data_rank: int, step: int, samples: tuple[int, ...]) -> None:
        """Add what one data rank consumed in a step."""
        path = self.path / SAMPLES / f"rank{data_rank}.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "samples": samples}) + "\n")

    def leave_out(self, reason: str, position: int, samples: list[int]) -> None:
        """Add a step's samples that the run does without to left_out.jsonl."""
        line = {"position": position, "samples": samples, "reason": reason}
        with (self.path / LEFT_OUT).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def ask_to_stop(self) -> None:
        """Tell a running loop to save and stop after its step."""
        (self.path / STOP).touch()

    @property
    def stop_asked(self) -> bool:
        """Whether somebody asked."""
        return (self.path / STOP).exists()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of lines; a last line that was cut off is left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


@contextlib.contextmanager
def passing_on(folder: RunFolder) -> Iterator[None]:
    """SIGTERM and Ctrl-C ask the workers to save and stop; a second one ends everything."""
    seen: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        folder.ask_to_stop()

    before = {n: signal.signal(n, handle) for n in ASK_TO_STOP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
