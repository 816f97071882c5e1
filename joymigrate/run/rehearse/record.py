"""What one process of a rehearsal saw, written to the session folder as json.

Written when the process ends, and now and then before, so that a process that is killed leaves
what it knew. Forked workers start with an empty record.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing.util
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from joymigrate.language import with_texts
from joymigrate.run.rehearse.overheads import Overhead

SAVE_EVERY_S = 2.0
TIMELINE_LIMIT = 2000  # samples; every other one goes when it is full
_saving = threading.RLock()  # the watching thread saves as well; a handler may interrupt a save


@dataclass(slots=True)
class RehearsalRecord:
    """Counts of one process. `operators` maps a name to how its results came about."""

    session: Path
    pid: int = field(default_factory=os.getpid)
    rank: int | None = None
    command: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    finished: bool = False
    calls: Counter[str] = field(default_factory=Counter)
    operators: dict[str, str] = field(default_factory=dict)
    fallbacks: dict[str, Counter[str]] = field(default_factory=dict)
    unsimulated: Counter[str] = field(default_factory=Counter)
    triton: Counter[str] = field(default_factory=Counter)  # launches in Triton's interpreter
    differences: dict[str, str] = field(default_factory=dict)
    traps: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: dict[str, dict[str, Any]] = field(default_factory=dict)
    races: dict[str, dict[str, Any]] = field(default_factory=dict)
    ordered: Counter[str] = field(default_factory=Counter)  # what the order was asked of
    overheads: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: int = 0  # of the program's optimizer
    repeated_refusals: Counter[str] = field(default_factory=Counter)  # by the keys of `refusals`
    checks: Counter[str] = field(default_factory=Counter)  # first calls, by who judged them
    repeated_checks: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)  # further calls of seen operators
    kernel_sequence: list[str] = field(default_factory=list)
    signatures: list[dict[str, Any]] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    reserved_bytes: dict[str, int] = field(default_factory=dict)
    timeline: list[tuple[float, int]] = field(default_factory=list)  # seconds, bytes
    groups: list[str] = field(default_factory=list)  # as shim/hccl.c lists them
    variables: dict[str, str] = field(default_factory=dict)  # of the environment
    jit_compile: str = ""  # what the program chose
    emptied: int = 0  # calls of empty_cache inside of a memory pool
    saved: float = 0.0
    sources: list[Callable[[RehearsalRecord], None]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file of this process."""
        return self.session / f"process-{self.pid}.json"

    def fallback(self, operator: str, where: str) -> None:
        """One operator ran on the CPU because the chip has no kernel for it."""
        self.fallbacks.setdefault(operator, Counter())[where] += 1

    def refuse(self, operator: str, kernel: str, message: str, **more: Any) -> str:
        """The chip would refuse this call; once per operator, kernel and message. Returns the key
        under which further calls count (`repeated_refusals`)."""
        key = f"{operator} {kernel} {message}"
        new = key not in self.refusals
        row = self.refusals.setdefault(
            key, {"op": operator, "kernel": kernel, "message": message, "calls": 0, **more}
        )
        row["calls"] += 1
        if new:
            self.save()  # whoever kills this process now does not hide it
        return key

    def overhead(self, found: Overhead, where: str) -> dict[str, Any]:
        """The row of an `Overhead` at a line, which counts the calls that meet it; one per kind,
        operator and place."""
        key = f"{found.kind} {found.op} {found.what} {where}"
        row = self.overheads.get(key)
        if row is None:
            named = {name: getattr(found, name) for name in found.__slots__}
            row = self.overheads[key] = {**named, "where": where, "calls": 0, "in_steps": 0}
        return row

    def trap(self, kind: str, where: str, remedy: str, message: str, **more: Any) -> None:
        """Something that works elsewhere and not here; once per kind and place."""
        key = f"{kind} {where}"
        found = self.traps.setdefault(
            key,
            {"trap": kind, "where": where, "remedy": remedy, "message": message, "count": 0},
        )
        found["count"] += 1
        found.update(more)

    def race(
        self, kind: str, message: str, remedy: str, first: tuple[str, str], second: tuple[str, str]
    ) -> None:
        """Two uses of the same memory without an order, each as (place, operator); once per pair
        of places."""
        key = f"{kind} {first} {second}"
        row = self.races.setdefault(
            key,
            {
                "race": kind,
                "message": message,
                "remedy": remedy,
                "where": second[0],
                "op": second[1],
                "first_where": first[0],
                "first_op": first[1],
                "count": 0,
            },
        )
        row["count"] += 1

    def sample(self, bytes_: int) -> None:
        """One point of memory over time."""
        self.timeline.append((round(time.time() - self.started, 4), bytes_))
        if len(self.timeline) > TIMELINE_LIMIT:
            del self.timeline[1::2]

    def save(self, finished: bool = False) -> None:
        """Write the record in one go; a reader never sees half of it.

        The last one stays: what the watching thread began to write before it comes to nothing.
        """
        with _saving:
            if self.finished and not finished:
                return
            try:
                self.write(finished)
            except RuntimeError:  # the program counted on meanwhile
                if finished:
                    raise

    def write(self, finished: bool) -> None:
        """Write what is known now."""
        self.finished, self.saved = finished, time.time()
        for source in self.sources:
            source(self)
        raw = {
            name: value
            for name, value in ((slot, getattr(self, slot)) for slot in self.__slots__)
            if name not in ("session", "sources")
        }
        path = self.path
        part = path.with_suffix(".part")
        try:
            part.write_text(json.dumps(with_texts(raw)), encoding="utf-8")
            part.replace(path)
        except OSError:
            pass  # the command that started us is gone, and its folder with it


def open_record(session: Path) -> RehearsalRecord:
    """The record of this process, saved when it ends."""
    record = RehearsalRecord(session)
    begin(record)
    atexit.register(lambda: record.save(finished=True))
    os.register_at_fork(after_in_child=lambda: restart(record))
    # A child of multiprocessing passes `atexit` by, and drops what was to be done before it began.
    multiprocessing.util.register_after_fork(open_record, lambda _: at_end_of_child(record))
    if multiprocessing.parent_process() is not None:  # a child that loads the package itself
        at_end_of_child(record)
    save_before_leaving(record)
    record.save()
    return record


def save_before_leaving(record: RehearsalRecord) -> None:
    """Save also where the program ends a process at once (`os._exit`)."""
    real = os._exit

    def leave(status: int) -> NoReturn:
        try:
            if record.calls or record.fallbacks or record.path.is_file():
                record.save(finished=True)
        finally:
            real(status)

    os._exit = leave


def at_end_of_child(record: RehearsalRecord) -> None:
    """Save when a forked child of multiprocessing ends."""
    multiprocessing.util.Finalize(None, lambda: record.save(finished=True), exitpriority=0)


def begin(record: RehearsalRecord) -> None:
    """Note who this process is."""
    record.pid = os.getpid()
    record.command = list(getattr(sys, "orig_argv", sys.argv))
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK")
    record.rank = int(rank) if rank and rank.isdigit() else None


def restart(record: RehearsalRecord) -> None:
    """In a forked child: forget what the parent counted."""
    global _saving
    _saving = threading.RLock()  # the thread that may have held it is the parent's
    empty = RehearsalRecord(record.session)
    for name in record.__slots__:
        if name not in ("session", "sources", "timeline"):
            setattr(record, name, getattr(empty, name))
    record.timeline = []
    begin(record)


def as_json(record: RehearsalRecord) -> dict[str, Any]:
    """The record as plain data, for tests."""
    return asdict(record)
