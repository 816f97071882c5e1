"""Which files a process writes: the main ones, its rank's, or its own."""

from __future__ import annotations

import os
from pathlib import Path

from joymigrate.profile.recorder.settings import RecorderSettings, trace_files


def claim(settings: RecorderSettings) -> tuple[Path, Path]:
    """The JSONL and the Chrome trace of this process: the first process takes the plain names.

    Under a launcher of several ranks every rank has its own.
    """
    rank = os.environ.get("RANK")
    if rank is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return trace_files(settings.out, rank=int(rank))
    try:
        with (settings.session / "main").open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
        return trace_files(settings.out)
    except FileExistsError:
        return trace_files(settings.out, process=os.getpid())
