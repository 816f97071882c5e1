"""One pod as a Ray actor: runs the job's command on the planned cards and writes its output down.

Whoever starts it may go and come back: every call can be made twice, and the exit code stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.run.cluster.jobs import GRACE_S
from joymigrate.run.cluster.on_ray import output

LINE = 65536  # bytes read at once
EXEC_BYTES = 1 << 20  # of the output of a command beside the job
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

    def __init__(self, root: str = "", job: str = "", attempt: int = 0, rank: int = 0) -> None:
        self.folder = (
            output.folder_of(root, job, attempt, rank) if job else Path(tempfile.mkdtemp())
        )
        self.output = output.PodOutput(self.folder)
        self.process: asyncio.subprocess.Process | None = None
        self.running: asyncio.Task[int] | None = None
        self.stopped = False
        self.environment: dict[str, str] = {}
        self._address: tuple[str, int] | None = None

    async def address(self) -> tuple[str, int]:
        """This node's address and a port that was free on it when it was first asked."""
        if self._address is None:
            util: Any = importlib.import_module("ray.util")
            with socket.socket() as probe:
                probe.bind(("", 0))
                port = int(probe.getsockname()[1])
            self._address = str(util.get_node_ip_address()), port
        return self._address

    async def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command, once however often it is asked."""
        if self.running is None and not self.stopped:
            self.running = asyncio.create_task(self.run(command, environment))

    async def wait(self) -> int:
        """The exit code of the command that was started."""
        if self.running is None:
            raise RuntimeError("the pod was never started")
        return await asyncio.shield(self.running)

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end and return its exit code."""
        self.environment = {**os.environ, **environment}
        guard = start_guard()
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )
        os.write(guard, f"{self.process.pid}\n".encode())
        if self.stopped:  # while it was being started
            self._signal(signal.SIGKILL)
        reading = asyncio.create_task(self._read(self.process))
        code = await exit_code(self.process)
        os.close(guard)
        self._signal(signal.SIGKILL)  # what it left behind would keep the cards and the pipe
        await reading
        return code

    async def execute(self, command: Sequence[str], limit_s: float) -> tuple[int, bytes]:
        """Run another command where the job runs, in its environment; its exit code and output.

        The output's first MiB is kept. A command that takes longer than `limit_s` seconds is
        killed (124, as `timeout` has it), one that is not there is 127. Before the job's own
        command has started there is no environment to run in: it is waited for.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while self.process is None:
            if loop.time() >= until:
                return 124, b"the job's own command has not started yet\n"
            await asyncio.sleep(LOOK_S)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        except OSError as error:
            return 127, f"{command[0]}: {error.strerror}\n".encode()
        kept = bytearray()

        async def collect() -> None:
            assert process.stdout is not None
            while chunk := await process.stdout.read(LINE):
                kept.extend(chunk[: max(0, EXEC_BYTES - len(kept))])

        try:
            await asyncio.wait_for(collect(), limit_s)
            code = await asyncio.wait_for(process.wait(), limit_s)
        except asyncio.TimeoutError:
            code = 124
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return code, bytes(kept)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Write the output down as it comes."""
        assert process.stdout is not None
        while chunk := await process.stdout.read(LINE):
            self.output.write(chunk)

    async def stop(self, grace_s: float = GRACE_S, how: str = "SIGTERM") -> None:
        """End the process and everything it started: this signal, and after the grace SIGKILL."""
        process, self.stopped = self.process, True
        if process is None:
            return
        if process.returncode is None:
            self._signal(signal.Signals[how])
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(exit_code(process), grace_s)
        self._signal(signal.SIGKILL)

    def _signal(self, how: signal.Signals) -> None:
        """Signal the process group."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, how)

    async def tail(self, count: int) -> list[str]:
        """The last lines of output."""
        return output.tail(self.folder, count)

    async def read(self, start: int, limit: int) -> output.OutputPiece:
        """Output from a place on."""
        return output.read(self.folder, start, limit)


async def exit_code(process: asyncio.subprocess.Process) -> int:
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
