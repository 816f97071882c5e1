"""The rollout's state on disk: written whole or not at all, and right after kill -9.

One gateway at a time has it: a lock beside the file is held for the process's life. Where a file
system keeps no locks, the number of the last writing tells that another one wrote.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.ledger.lock import try_lock
from joymigrate.run.serve.gateway.clock import tell_time

SCHEMA = "joymigrate.rollout-state/1"


class StateStore:
    """The state's file. Writers in several threads never put an older state over a newer one."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, identity
        self.lock = threading.Lock()
        self.next = 0
        self.written = -1
        self.handle: int | None = None  # of the lock
        self.generation = 0  # of the file, as this process last read or wrote it

    def hold(self) -> None:
        """Keep other gateways off this state until `release`, or until this process ends."""
        path = self.path.with_name(f"{self.path.name}.lock")
        try:
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise JoyError(f"cannot write beside the state: {error.strerror}", where=str(path),
                           help="name a writable file as `state`") from None  # fmt: skip
        if not try_lock(self.handle):
            self.release()
            raise JoyError("another gateway has this rollout's state", where=str(self.path),
                           help="give this one a `state` of its own; for one rollout of several "
                                "gateways `state: redis://HOST:6379/0#NAME`")  # fmt: skip

    def release(self) -> None:
        """Let others have the state."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def number(self) -> int:
        """The place of a snapshot among all that were taken. Call it when taking one."""
        self.next += 1
        return self.next

    def save(self, number: int, rollout: dict[str, Any]) -> None:
        """Replace the state atomically and make it durable, unless a newer one is there.

        Raises `OSError`, and `JoyError` where another gateway has written.
        """
        state: dict[str, Any] = {"schema": SCHEMA, "identity": self.identity, "rollout": rollout}
        with self.lock:
            if number < self.written:
                return
            there = self.generation_there()
            if there != self.generation:
                raise JoyError(f"another gateway has written it (its writing {there}, ours was "
                               f"{self.generation})", where=str(self.path))  # fmt: skip
            state |= {"generation": there + 1, "at": tell_time()}
            replace_file(self.path, json.dumps(state).encode(), durable=True)
            self.written, self.generation = number, there + 1

    def generation_there(self) -> int:
        """How often the file was written; as we know it where it is gone or cannot be read."""
        try:
            return int(json.loads(self.path.read_text(encoding="utf-8")).get("generation", 0))
        except (OSError, ValueError, AttributeError):
            return self.generation

    def load(self) -> tuple[dict[str, Any], float | None] | None:
        """The saved rollout and when it was saved; None when there is none for this pair of
        upstreams.

        A state that cannot be read is an error: starting afresh could ramp a standby up that was
        rolled back.
        """
        if not self.path.exists():
            return None
        try:
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if saved["schema"] != SCHEMA:
                raise ValueError(f"schema {saved['schema']!r}")
            rollout: dict[str, Any] = saved["rollout"]
            self.generation = int(saved.get("generation", 0))
            return (rollout, saved.get("at")) if saved["identity"] == self.identity else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JoyError(
                f"cannot read the state of the rollout: {error}",
                where=str(self.path),
                help="remove the file to begin a new rollout, if that is what you want",
            ) from None
