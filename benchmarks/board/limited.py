"""Run one command in a folder, within limits of time and memory, and keep what it said."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_S = 0.2
TAIL = 6000  # characters of an output that a row may quote


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: `stopped` is "time" or "memory" where a limit did it."""

    code: int
    text: str
    seconds: float
    stopped: str = ""


def run(
    command: Sequence[str],
    cwd: Path,
    log: Path,
    *,
    seconds: float,
    gib: float,
    environment: Mapping[str, str],
) -> Ended:
    """Run it in a session of its own; at a limit the whole session is killed.

    Memory is the resident memory of all its processes together, looked at every 0.2 s: a limit on
    the address space would stop allocators that reserve more than they use.
    """
    started = time.monotonic()
    stopped = ""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while process.poll() is None:
            if time.monotonic() - started > seconds:
                stopped = "time"
            elif resident(process.pid) > gib * 2**30:
                stopped = "memory"
            if stopped:
                break
            time.sleep(POLL_S)
        kill(process.pid)
        code = process.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    return Ended(code, text, time.monotonic() - started, stopped)


def resident(pid: int) -> int:
    """Bytes of resident memory of a process and its children."""
    try:
        top = psutil.Process(pid)
        every = [top, *top.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for one in every:
        try:
            total += one.memory_info().rss
        except psutil.Error:
            continue
    return total


def kill(group: int) -> None:
    """Kill what is left of a session that this module started."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
