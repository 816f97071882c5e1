"""Where a cluster's log lies: SQLite, appended to and never changed, with snapshots to start from.

One writer at a time, which a lock of the operating system keeps apart; it lets go when the writer's
process is killed. Anybody may read beside it. A transaction is on the disk when `append` returns.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger.lock import try_lock
from joymigrate.run.cluster.controller.ledger import JobLedger, LogFact
from joymigrate.schema import read

FILE = "cluster.db"
EVERY = 1000  # facts between two snapshots
SNAPSHOTS = 2  # kept: the one before is there when the last one cannot be read
TABLES = """
CREATE TABLE IF NOT EXISTS log (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL,
    job TEXT NOT NULL, by TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS log_job ON log (job);
CREATE TABLE IF NOT EXISTS snapshot (number INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON log
    BEGIN SELECT RAISE(ABORT, 'the log is only appended to'); END;
CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON log
    BEGIN SELECT RAISE(ABORT, 'the log is only appended to'); END;
"""


class LogStore:
    """The folder of one cluster's log, open for writing."""

    def __init__(self, folder: Path) -> None:
        try:
            # Jobs' environments are in the log: nobody else may read it.
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise JoyError(f"cannot open: {error.strerror}", where=str(folder)) from error
        if not try_lock(self._lock):
            os.close(self._lock)
            raise JoyError(
                "another controller writes this cluster's log",
                where=str(folder),
                help="give each Ray cluster a --store of its own",
            )
        self.folder = folder
        self.base = sqlite3.connect(folder / FILE, isolation_level=None, check_same_thread=False)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=FULL")
        self.base.executescript(TABLES)
        self.since_snapshot = 0

    def load(self) -> JobLedger:
        """What is true after the whole log."""
        ledger = self._snapshot()
        for fact in facts(self.base, after=ledger.last):
            ledger.apply(fact)
            self.since_snapshot += 1
        return ledger

    def append(self, new: Sequence[LogFact], ledger: JobLedger) -> list[LogFact]:
        """Write facts down, all or none, and take them into the ledger; returns them numbered."""
        rows = [(f.at, f.kind, f.job, f.by, json.dumps(dict(f.data))) for f in new]
        self.base.execute("BEGIN IMMEDIATE")
        try:
            numbered = []
            for fact, row in zip(new, rows, strict=True):
                done = self.base.execute(
                    "INSERT INTO log (at, kind, job, by, data) VALUES (?, ?, ?, ?, ?)", row
                )
                numbered.append(replace(fact, number=int(done.lastrowid or 0)))
            self.base.execute("COMMIT")
        except BaseException:
            self.base.execute("ROLLBACK")
            raise
        for fact in numbered:
            ledger.apply(fact)
        self.since_snapshot += len(numbered)
        if self.since_snapshot >= EVERY:
            self.snapshot(ledger)
        return numbered

    def snapshot(self, ledger: JobLedger) -> None:
        """Keep the ledger as it stands, so that a start need not read the whole log."""
        data = json.dumps(dataclasses.asdict(ledger))
        self.base.execute("BEGIN IMMEDIATE")
        self.base.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?)", (ledger.last, data))
        self.base.execute(
            "DELETE FROM snapshot WHERE number NOT IN "
            "(SELECT number FROM snapshot ORDER BY number DESC LIMIT ?)",
            (SNAPSHOTS,),
        )
        self.base.execute("COMMIT")
        self.since_snapshot = 0

    def _snapshot(self) -> JobLedger:
        """The last snapshot that can be read; without one, an empty ledger."""
        for (data,) in self.base.execute("SELECT data FROM snapshot ORDER BY number DESC"):
            try:
                raw = json.loads(data)
                raw["attempts"] = {int(number): one for number, one in raw["attempts"].items()}
                return read(JobLedger, raw, "snapshot")
            except (JoyError, ValueError) as error:
                print(f"{self.folder}: a snapshot is passed over: {error}", file=sys.stderr)
        return JobLedger()

    def facts(self, after: int = 0, job: str | None = None) -> Iterator[LogFact]:
        """The log from one place on, or what has happened to one job."""
        return facts(self.base, after, job)

    def close(self) -> None:
        """Let go of the log."""
        self.base.close()
        os.close(self._lock)


def facts(base: sqlite3.Connection, after: int = 0, job: str | None = None) -> Iterator[LogFact]:
    """Facts of a log in their order."""
    query = "SELECT number, at, kind, job, by, data FROM log WHERE number > ?"
    bound: list[object] = [after]
    if job is not None:
        query += " AND job = ?"
        bound.append(job)
    for number, at, kind, name, by, data in base.execute(f"{query} ORDER BY number", bound):
        yield LogFact(kind, at, name, by, json.loads(data), number)


def read_only(folder: Path) -> sqlite3.Connection:
    """A cluster's log beside its writer, or after it; `JoyError` where there is none."""
    if not (folder / FILE).is_file():
        raise JoyError("no cluster's log here", where=str(folder), help="name its --store folder")
    return sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)
