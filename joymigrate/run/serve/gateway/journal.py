"""The request log: one JSON line per attempt that is evidence, written in the background.

`serve simulate --failures` reads it back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import Served

WAITING = 100_000  # lines kept when the disk does not keep up


class Journal:
    """Collects lines; `flush` appends them to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[bytes] = []
        self.lost = 0
        try:
            path.touch()
        except OSError as error:
            raise JoyError(
                f"cannot write the request log: {error.strerror}",
                where=str(path),
                help="name a writable file as `log`",
            ) from None

    def add(self, served: Served, details: dict[str, Any]) -> None:
        """Note one outcome. Never waits."""
        if len(self.lines) >= WAITING:
            self.lost += 1
            return
        row = {
            "time": served.time,
            "failure": served.failure,
            "instance": served.instance,
            "shadow": served.shadow,
            **details,
        }
        self.lines.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        """Append what was collected."""
        lines, self.lines = self.lines, []
        if lines:
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
