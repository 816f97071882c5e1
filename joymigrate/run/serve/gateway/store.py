"""The rollout's state on disk: written whole or not at all, and right after kill -9."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file

SCHEMA = "joymigrate.rollout-state/1"


class Store:
    """The state's file. Writers in several threads never put an older state over a newer one."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, identity
        self.lock = threading.Lock()
        self.next = 0
        self.written = -1

    def number(self) -> int:
        """The place of a snapshot among all that were taken. Call it when taking one."""
        self.next += 1
        return self.next

    def save(self, number: int, rollout: dict[str, Any]) -> None:
        """Replace the state atomically and make it durable, unless a newer one is there."""
        text = json.dumps({"schema": SCHEMA, "identity": self.identity, "rollout": rollout})
        with self.lock:
            if number < self.written:
                return
            replace_file(self.path, text.encode(), durable=True)
            self.written = number

    def load(self) -> dict[str, Any] | None:
        """The saved rollout, or None when there is none for this pair of upstreams.

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
            return rollout if saved["identity"] == self.identity else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JoyError(
                f"cannot read the state of the rollout: {error}",
                where=str(self.path),
                help="remove the file to begin a new rollout, if that is what you want",
            ) from None
