"""Runs of our commands, each with an id: they outlive the call that began them, and end with us."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from joymigrate.agent.door.tools import ToolSpec
from joymigrate.errors import JoyError
from joymigrate.journey.child import start

MOST_KEPT = 64  # ended runs whose answers are kept
MOST_WAITING = 32
AT_ONCE = 2
MOST_READ = 8 * 2**20  # bytes of what a command wrote
POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
LONG_FILE = 12  # lines of a new file that a diff shows
LAST = re.compile(r"^error: ", re.MULTILINE)


@dataclass(slots=True)
class CommandRun:
    """One call of a command: `document` is its answer when it ended."""

    id: str
    tool: str
    state: str = "waiting"  # waiting, running, ended, cancelled
    began: float = field(default_factory=time.monotonic)
    document: Mapping[str, Any] | None = None
    failed: bool = False
    process: subprocess.Popen[bytes] | None = None
    folder: Path | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    took: float | None = None  # seconds, when it ended

    def row(self) -> dict[str, Any]:
        """The run in a list."""
        seconds = round(time.monotonic() - self.began if self.took is None else self.took, 1)
        return {"id": self.id, "tool": self.tool, "state": self.state, "seconds": seconds}

    def last_line(self) -> str:
        """What its command said last, for a progress message."""
        if self.folder is None:
            return ""
        try:
            with open(self.folder / "stderr", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 400))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[:160] if lines else ""


class Runs:
    """All runs of a server; `scope` is the task group in which they go on."""

    def __init__(self, scope: anyio.abc.TaskGroup) -> None:
        self.scope = scope
        self.known: dict[str, CommandRun] = {}
        self.kept: deque[str] = deque()
        self.room = anyio.Semaphore(AT_ONCE)
        self.count = 0

    def begin(self, tool: ToolSpec, asked: Mapping[str, Any]) -> CommandRun:
        """Start a call; a server with too many that wait refuses another one."""
        going = sum(not one.ended.is_set() for one in self.known.values())
        if going >= MOST_WAITING:
            raise JoyError(f"{going} runs wait already", help="`result` with `cancel` ends one")
        self.count += 1
        run = CommandRun(f"r{self.count}", tool.name)
        self.known[run.id] = run
        self.scope.start_soon(self.carry_out, run, tool, dict(asked))
        return run

    def find(self, name: str) -> CommandRun:
        """A run by its id."""
        if name not in self.known:
            raise JoyError(
                f"there is no run '{name[:20]}'", help="`result` without an id lists them"
            )
        return self.known[name]

    async def carry_out(self, run: CommandRun, tool: ToolSpec, asked: Mapping[str, Any]) -> None:
        """Run the command to its end, and keep what it answered."""
        folder = Path(tempfile.mkdtemp(prefix="joymigrate-mcp-"))
        try:
            async with self.room:
                if run.state == "waiting":
                    run.state, run.folder = "running", folder
                    code = await execute(run, tool, folder, asked)
                    run.document, run.failed = read(tool, code, folder)
        except (JoyError, OSError) as error:
            run.document, run.failed = describe(error), True
        finally:
            with anyio.CancelScope(shield=True):
                await kill(run)
            run.folder = None
            shutil.rmtree(folder, ignore_errors=True)
            if run.state == "cancelled":
                run.document, run.failed = describe(JoyError("the run was cancelled")), True
            else:
                run.state = "ended"
            run.took = time.monotonic() - run.began
            run.ended.set()
            self.forget(run)

    def forget(self, run: CommandRun) -> None:
        """Keep the answers of the last runs alone."""
        self.kept.append(run.id)
        while len(self.kept) > MOST_KEPT:
            self.known.pop(self.kept.popleft(), None)

    async def cancel(self, run: CommandRun) -> None:
        """End a run, and what it started."""
        if not run.ended.is_set():
            run.state = "cancelled"
            await kill(run)


async def execute(run: CommandRun, tool: ToolSpec, folder: Path, asked: Mapping[str, Any]) -> int:
    """Start one of our commands without a shell, and wait for it."""
    words = list(tool.words(asked))
    if tool.document != "text":
        at = words.index("--") if "--" in words else len(words)
        words[at:at] = ["--format", tool.form]
        if tool.document == "file":
            words[at + 2 : at + 2] = ["-o", str(folder / "document.json")]
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        run.process = start(
            [sys.executable, "-m", "joymigrate", *words],
            cwd=asked.get("folder"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
    while run.process.poll() is None:
        await anyio.sleep(POLL_SECONDS)
    return int(run.process.returncode)


async def kill(run: CommandRun) -> None:
    """End a command with its whole process group; one that goes on is killed."""
    process = run.process
    if process is None or process.poll() is not None:
        return
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        until = time.monotonic() + GRACE_SECONDS
        while process.poll() is None and time.monotonic() < until:
            await anyio.sleep(POLL_SECONDS)


def read(tool: ToolSpec, code: int, folder: Path) -> tuple[Mapping[str, Any], bool]:
    """What a command answered, and whether that is an error of its own."""
    said = read_text(folder / "stderr")
    out = read_text(folder / "stdout")
    if tool.document == "text":
        if code not in (0, 1) or (code and not out):
            return read_error(said, code), True
        lines = fold_new_files(out.splitlines()) or said.splitlines()
        return {"schema": "joymigrate.text/1", "tool": tool.name, "lines": lines}, False
    text = read_text(folder / "document.json") if tool.document == "file" else out
    try:
        found = json.loads(text)
    except ValueError:
        return read_error(said, code), True
    if not isinstance(found, dict):
        return read_error(said, code), True
    return {**found, "exit_code": code} if "exit_code" not in found else found, False


def fold_new_files(lines: list[str]) -> list[str]:
    """A diff whose long new files are counted: what they hold is generated."""
    found: list[str] = []
    folded = 0
    for number, line in enumerate(lines):
        if line.startswith("diff --git "):
            folded = 0
        if line.startswith("@@ -0,0 +1,") and lines[number - 2].startswith("--- /dev/null"):
            folded = 1
        elif folded and line.startswith("+"):
            folded += 1
            if folded == LONG_FILE:
                found.append("… the rest of this new file; `apply` writes it")
            if folded >= LONG_FILE:
                continue
        found.append(line)
    return found


def read_text(path: Path) -> str:
    """The beginning of what a command wrote; empty where it wrote nothing."""
    try:
        with open(path, "rb") as file:
            return file.read(MOST_READ).decode("utf-8", "replace")
    except OSError:
        return ""


def read_error(said: str, code: int) -> dict[str, Any]:
    """An error of ours as a document: what, where, and what to do next."""
    parts = LAST.split(said)
    lines = (parts[-1] if len(parts) > 1 else said[-600:]).strip().splitlines()
    what = [one for one in lines if not one.startswith("  ")]
    where = next((one[6:] for one in lines if one.startswith("  at: ")), None)
    help = next((one[8:] for one in lines if one.startswith("  help: ")), "")
    told = " ".join(what) or f"the command ended with exit code {code}"
    return describe(JoyError(told, where=where, help=help))


def describe(error: Exception) -> dict[str, Any]:
    """An error as a document; each says what to do next."""
    what = error.what if isinstance(error, JoyError) else str(error)
    where = error.where if isinstance(error, JoyError) else None
    help = (error.help if isinstance(error, JoyError) else None) or "`next` says where things stand"
    found = {"schema": "joymigrate.error/1", "error": what, "next": help}
    return {**found, "where": where} if where else found
