"""Readings over time in one SQLite file: every reading for a while, minute averages for longer."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError

FINE_SECONDS = 2 * 3600  # how long every single reading is kept
EVENTS = 500
SCHEMA = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS fine (series INTEGER, time INTEGER, value REAL,
    PRIMARY KEY (series, time)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS minutes (series INTEGER, time INTEGER, value REAL,
    PRIMARY KEY (series, time)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (time REAL, kind TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS notes (key TEXT PRIMARY KEY, value TEXT);
"""


class History:
    """One file. Every method may be called from any thread. Times in seconds."""

    def __init__(self, path: Path, retention_days: float = 14.0) -> None:
        self.path, self.retention_seconds = path, retention_days * 86_400
        self.lock = threading.Lock()
        try:
            self.base = sqlite3.connect(path, check_same_thread=False)
            self.base.execute("PRAGMA journal_mode=WAL")
            self.base.execute("PRAGMA synchronous=NORMAL")
            self.base.executescript(SCHEMA)
            self.ids = dict(self.base.execute("SELECT key, id FROM series").fetchall())
        except sqlite3.Error as error:
            raise JoyError(
                f"cannot use the history: {error}",
                where=str(path),
                help="name another file, or remove this one",
            ) from None

    def add(self, time: float, values: Mapping[str, float]) -> None:
        """Keep one reading of every key."""
        with self.lock, self.base:
            self.base.executemany(
                "INSERT OR REPLACE INTO fine VALUES (?, ?, ?)",
                [(self.id_of(key), int(time * 1000), value) for key, value in values.items()],
            )

    def id_of(self, key: str) -> int:
        found = self.ids.get(key)
        if found is None:
            found = self.base.execute("INSERT INTO series (key) VALUES (?)", (key,)).lastrowid
            assert found is not None
            self.ids[key] = found
        return found

    def event(self, time: float, kind: str, text: str) -> None:
        """Keep something that happened."""
        with self.lock, self.base:
            self.base.execute("INSERT INTO events VALUES (?, ?, ?)", (time, kind, text))

    def compact(self, now: float) -> None:
        """Turn old readings into minute averages; forget what is past its retention."""
        border = int((now - FINE_SECONDS) // 60 * 60_000)
        with self.lock, self.base:
            self.base.execute(
                "INSERT OR REPLACE INTO minutes SELECT series, time / 60000 * 60000, avg(value) "
                "FROM fine WHERE time < ? GROUP BY series, time / 60000",
                (border,),
            )
            self.base.execute("DELETE FROM fine WHERE time < ?", (border,))
            oldest = now - self.retention_seconds
            self.base.execute("DELETE FROM minutes WHERE time < ?", (int(oldest * 1000),))
            self.base.execute("DELETE FROM events WHERE time < ?", (oldest,))

    def read(self, start: float, end: float, points: int = 600) -> dict[str, list[list[float]]]:
        """`[seconds, value]` by key, averaged down to about `points`."""
        step = max(1, int((end - start) * 1000 / points))
        with self.lock:
            rows = self.base.execute(
                "SELECT key, min(time), avg(value) FROM ("
                "SELECT series, time, value FROM fine WHERE time BETWEEN ? AND ? UNION ALL "
                "SELECT series, time, value FROM minutes WHERE time BETWEEN ? AND ?) "
                "JOIN series ON series.id = series GROUP BY key, time / ? ORDER BY 2",
                (int(start * 1000), int(end * 1000)) * 2 + (step,),
            ).fetchall()
        found: dict[str, list[list[float]]] = {}
        for key, time, value in rows:
            found.setdefault(key, []).append([time / 1000, round(value, 6)])
        return found

    def events(self, limit: int = 100) -> list[dict[str, Any]]:
        """What happened lately, newest first."""
        with self.lock:
            rows = self.base.execute(
                "SELECT time, kind, text FROM events ORDER BY time DESC, rowid DESC LIMIT ?",
                (min(limit, EVENTS),),
            ).fetchall()
        return [{"time": time, "kind": kind, "text": text} for time, kind, text in rows]

    def note(self, key: str, value: Any) -> None:
        """Keep a small thing across restarts."""
        with self.lock, self.base:
            self.base.execute(
                "INSERT OR REPLACE INTO notes VALUES (?, ?)", (key, json.dumps(value))
            )

    def noted(self, key: str) -> Any:
        """What was kept, or None."""
        with self.lock:
            row = self.base.execute("SELECT value FROM notes WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def close(self) -> None:
        with self.lock:
            self.base.close()
