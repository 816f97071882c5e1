"""One pod as a Ray actor: runs the job's command on the planned cards and keeps its last lines."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

LINES = 2000  # lines of output kept per pod
LINE = 65536  # bytes of the longest line kept in one piece
GRACE_S = 1.0  # between asking a process to end and making it
LOOK_S = 0.05  # between looks at a process
GUARD = """
import os, signal, sys
if os.fork(): os._exit(0)
os.setsid()
group = sys.stdin.read().strip()
if group: os.killpg(int(group), signal.SIGKILL)
"""


class Pod:
    """A process on a node. Its own process group dies with it."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=LINES)
        self.process: asyncio.subprocess.Process | None = None

    async def address(self) -> tuple[str, int]:
        """This node's address and a port that is free on it."""
        util: Any = importlib.import_module("ray.util")
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        return str(util.get_node_ip_address()), port

    async def seen(self, names: Sequence[str]) -> dict[str, str | None]:
        """Environment variables as this pod has them."""
        return {name: os.environ.get(name) for name in names}

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end and return its exit code."""
        guard = start_guard()
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        os.write(guard, f"{self.process.pid}\n".encode())
        reading = asyncio.create_task(self._read(self.process))
        code = await ended(self.process)
        os.close(guard)
        self._signal(signal.SIGKILL)  # what it left behind would keep the cards and the pipe
        await reading
        return code

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Keep the output by lines, however long they are: progress bars end none for hours."""
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(LINE):
            text = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *ended, rest = text.split(b"\n")
            self.lines.extend(line.decode("utf-8", "replace") for line in ended)
            if len(rest) >= LINE:
                self.lines.append(rest.decode("utf-8", "replace"))
                rest = b""
        if rest:
            self.lines.append(rest.decode("utf-8", "replace"))

    async def stop(self) -> None:
        """End the process and everything it started."""
        process = self.process
        if process is None:
            return
        if process.returncode is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended(process), GRACE_S)
        self._signal(signal.SIGKILL)

    def _signal(self, how: signal.Signals) -> None:
        """Signal the process group."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, how)

    async def tail(self, count: int) -> list[str]:
        """The last lines of output."""
        return list(self.lines)[-count:]


async def ended(process: asyncio.subprocess.Process) -> int:
    """The exit code; `Process.wait` waits for all that hold the pipe, children left behind too."""
    while process.returncode is None:
        await asyncio.sleep(LOOK_S)
    return process.returncode


def start_guard() -> int:
    """A process that outlives this one for a moment: it kills a process group at the pipe's end.

    Returns the descriptor to write the group's number to. Ray kills the children of a worker, not
    their children; the guard is nobody's child, so that a pod that is killed leaves nothing.
    """
    read, write = os.pipe()
    starter = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", GUARD],
        stdin=read,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read)
    starter.wait()
    return write
