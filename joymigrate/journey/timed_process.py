"""Runs a command with its output in a file, and remembers when each line of interest came."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from joymigrate.journey.child import end, start

DRAIN_SECONDS = 5.0  # a child that outlives the command may keep its pipe open


def run(
    command: Sequence[str],
    log: Path,
    cwd: Path,
    environment: Mapping[str, str],
    wanted: Callable[[str], bool],
) -> tuple[int, list[tuple[float, str]]]:
    """The exit code, and (seconds since the start, text) of every line that is `wanted`."""
    lines: list[tuple[float, str]] = []
    began = time.monotonic()
    with open(log, "wb") as output:
        process = start(
            command,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None  # asked for with PIPE
        pipe = process.stdout

        def read() -> None:
            for line in pipe:
                at = time.monotonic() - began
                output.write(line)
                text = line.decode("utf-8", "replace").rstrip()
                if wanted(text):
                    lines.append((at, text))

        reader = threading.Thread(target=read, daemon=True)
        try:
            reader.start()
            code = process.wait()
        except BaseException:
            end(process)
            raise
        reader.join(DRAIN_SECONDS)
        found = list(lines)
        if not reader.is_alive():
            pipe.close()
    return code, found
