"""What a step works with: the request, its folder, and commands that leave their output behind."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.journey.gates import Gates
from joymigrate.journey.model import Request

SHOWN = 12  # last lines of a failed command that its message quotes


@dataclass(slots=True)
class Done:
    """A command that ended: what it printed lies in `log`."""

    command: str
    code: int
    log: Path

    def tail(self) -> str:
        """Its last lines."""
        text = self.log.read_text(encoding="utf-8", errors="replace").strip()
        return "\n".join(text.splitlines()[-SHOWN:])


@dataclass(slots=True)
class Travelling:
    """One step's view of its journey. `chip_here` says that the real chip is in this machine."""

    request: Request
    gates: Gates
    folder: Path
    chip_here: bool = False
    ran: list[str] = field(default_factory=list)
    rewrite_step: str | None = None

    def path(self, name: str) -> Path:
        """A file of this journey."""
        return self.folder / name

    def joymigrate(self, log: str, *words: str, ok: Sequence[int] = (0,)) -> Done:
        """Run a joymigrate command in the project."""
        done = self.call(log, [sys.executable, "-m", "joymigrate", *words])
        self.ran.append(shlex.join(["joymigrate", *words]))
        if done.code not in ok:
            raise StepFailed(f"`joymigrate {words[0]}` ended with {done.code}", done.tail())
        return done

    def plain(self, log: str) -> Done:
        """Run the user's program as it is, on the GPU of this machine or its CPU."""
        from joymigrate.chips import hide_driverless
        from joymigrate.run.rehearse.session import START

        self.ran.append(shlex.join(self.request.entry))
        changes = {}
        if not self.chip_here and hide_driverless():
            # A vendor's package without its driver would fail, and with it all that looks for it.
            path = os.pathsep.join(filter(None, (str(START), os.environ.get("PYTHONPATH"))))
            changes = {
                "PYTHONPATH": path,
                "JOYMIGRATE_SWITCH": "joymigrate.chips.presence:hide_driverless",
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            }
        return self.call(log, list(self.request.command or self.request.entry), **changes)

    def on_chip(self) -> list[str]:
        """The command that runs a program on the chip, or on the simulated one."""
        verb = "run" if self.chip_here else "rehearse"
        return [verb, "--to", self.request.chip]

    def call(self, log: str, command: list[str], **environment: str) -> Done:
        """Run a command with its output in one file."""
        path = self.path(log)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as output:
            try:
                code = subprocess.run(
                    command,
                    cwd=self.request.project,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                ).returncode
            except OSError as error:
                raise JoyError(
                    f"cannot start '{command[0]}': {error.strerror}",
                    help="name the program with --entry as you would start it",
                ) from None
        return Done(shlex.join(command), code, path)

    def load(self, name: str) -> Mapping[str, Any]:
        """A JSON file that a command wrote."""
        path = self.path(name)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StepFailed(f"{name} can't be read: {error}", "") from None
        if not isinstance(found, dict):
            raise StepFailed(f"{name} holds no JSON object", "")
        return found


class StepFailed(Exception):
    """A step could not do its work; `tail` quotes what the command printed last."""

    def __init__(self, what: str, tail: str) -> None:
        super().__init__(what)
        self.what, self.tail = what, tail
