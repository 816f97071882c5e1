"""Runs a command with its output in a file, and remembers when each line of interest came."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GRACE_SECONDS = 5.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
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
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=dying,
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
        reader.start()
        try:
            code = process.wait()
        except BaseException:
            end(process)
            raise
        reader.join(DRAIN_SECONDS)
        found = list(lines)
        if not reader.is_alive():
            pipe.close()
    return code, found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started; whoever hears nothing is killed."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def dying_with_parent() -> Callable[[], None] | None:
    """A function for the child that has it end when this process dies, however it dies.

    A program that outlives its journey would write into the project beside the next one. Linux
    only; elsewhere it stays.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask


dying = dying_with_parent()
