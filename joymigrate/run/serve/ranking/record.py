"""Requests written down as they come, for `serve drill --replay`."""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.run.serve.ranking.request import RankingRequest

log = logging.getLogger("joymigrate.serve")
WAITING = 1024  # requests that wait for the disk; more are left out and counted


class RequestRecorder:
    """Appends checked requests to a JSONL file, beside the requests."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = path.open("ab")
        except OSError as error:
            raise JoyError(f"requests cannot be written: {error.strerror}",
                           where=str(path)) from None  # fmt: skip
        self.waiting: queue.Queue[RankingRequest | None] = queue.Queue(WAITING)
        self.left_out = 0
        self.thread = threading.Thread(target=self.work, name="record", daemon=True)
        self.thread.start()

    def add(self, request: RankingRequest) -> None:
        """Write a request down, unless the disk is too slow."""
        try:
            self.waiting.put_nowait(request)
        except queue.Full:
            self.left_out += 1

    def work(self) -> None:
        """The thread; a full disk ends the recording, not the server."""
        while True:
            request = self.waiting.get()
            if request is None:
                return
            row = {"inputs": request.arrays, **({"user": request.key} if request.key else {})}
            try:
                self.file.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            except OSError as error:
                log.warning("requests are no longer recorded: %s", error)
                return

    def close(self) -> None:
        """Write what waits, and end."""
        if self.thread.is_alive():
            self.waiting.put(None)
            self.thread.join(timeout=10)
        self.file.close()
        if self.left_out:
            log.warning("%d requests were not recorded: the disk was too slow", self.left_out)
