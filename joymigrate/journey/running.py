"""What a journey is at just now: one small file, for those who look on from another process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from joymigrate.files import replace_file

FILE = "running.json"
SCHEMA = "joymigrate.running/1"


@contextmanager
def mark_running(folder: Path, step: str, steps: Sequence[str]) -> Iterator[None]:
    """Say in `folder` that this process is at `step` of `steps`, until the block ends.

    A killed process leaves the file behind; readers ask whether its `pid` lives on `host`.
    """
    document = {
        "schema": SCHEMA,
        "step": step,
        "steps": list(steps),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    path = folder / FILE
    replace_file(path, json.dumps(document).encode(), durable=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
