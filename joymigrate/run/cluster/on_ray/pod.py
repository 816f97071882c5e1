"""One pod as a Ray actor: runs the job's command on the planned cards and keeps its last lines."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

LINES = 2000  # lines of output kept per pod
GRACE_S = 1.0  # between asking a process to end and making it


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
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
        return await self.process.wait()

    async def stop(self) -> None:
        """End the process and everything it started."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_S)
                return

    async def tail(self, count: int) -> list[str]:
        """The last lines of output."""
        return list(self.lines)[-count:]
