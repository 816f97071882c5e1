"""What a step works with: the request, its folder, and commands that leave their output behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate import launching
from joymigrate.blame.end_files import prepare
from joymigrate.blame.exceptions import of_first_rank
from joymigrate.errors import JoyError
from joymigrate.journey import timed_process
from joymigrate.journey.gates import Gates
from joymigrate.journey.losses import losses
from joymigrate.journey.model import JourneyRequest, StepOutcome
from joymigrate.language import Text, restore_texts
from joymigrate.run.door.settings import DoorSettings
from joymigrate.verify import made_files

SHOWN = 12  # last lines of a failed command that its message quotes


# What our own commands and a vendor's library add behind the program's last words.
OURS = re.compile(
    r"^(rehearsal: |record: |verify: |baseline: |error: the program ended with exit code \d+; "
    r"|error: nothing was recorded|\[ERROR\] .*ERR\d+)"
)
PLACE = {"PWD", "OLDPWD"}
# Two runs of a program that sets no seed start from other weights: both get one, and what they draw
# on a device is the same on both sides, too. Python orders sets of strings anew in every process: a
# vocabulary made of a set would be another one each time.
SEED, DRAWS, HASHES = "JOYMIGRATE_SEED", "JOYMIGRATE_DRAWS", "PYTHONHASHSEED"
MEMORY = "JOYMIGRATE_MEMORY"
REACH = "JOYMIGRATE_REACH"
RUNS = ("rehearse", "run", "baseline", "verify record", "verify replay", "profile record")
MADE = "made.json"  # what the program's last run made in the project
DRAWN = "train/draws.txt"  # random operators that could not be made the same on both sides


def is_run(words: Sequence[str]) -> bool:
    """Whether a command of ours runs the user's program."""
    return bool({words[0], " ".join(words[:2])} & set(RUNS))


def numbers(words: Sequence[str], draws: Path | None = None) -> dict[str, str]:
    """The variables that make a program's random numbers repeatable; none for other commands."""
    if not is_run(words):
        return {}
    found = {name: os.environ.get(name, "0") for name in (SEED, HASHES)}
    return found | {DRAWS: str(draws or os.environ.get(DRAWS, "1"))}


@dataclass(slots=True)
class CompletedCommand:
    """A command that ended: what it printed lies in `log`, what its processes noted of how they
    ended in `notes`."""

    command: str
    code: int
    log: Path
    losses: Sequence[tuple[float, str]] = ()  # (seconds since the start, line) that name a loss
    notes: Path | None = None

    def text(self) -> str:
        """All that it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace").strip()

    def lines(self) -> list[str]:
        """The program's lines, without what was added to them."""
        kept: list[str] = []
        added = False
        for line in of_first_rank(self.text()).splitlines():
            added = bool(OURS.match(line)) or (added and line.startswith("  "))
            if not added:
                kept.append(line)
        return kept

    def tail(self) -> str:
        """The last of these lines."""
        return "\n".join(self.lines()[-SHOWN:])


@dataclass(slots=True)
class StepContext:
    """One step's view of its journey. `chip_here` says that the real chip is in this machine,
    `gpu_here` that one of the origin is; `before` are the outcomes of the steps before."""

    request: JourneyRequest
    gates: Gates
    folder: Path
    chip_here: bool = False
    gpu_here: bool = False
    before: Mapping[str, StepOutcome] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    rewrite_step: str | None = None
    mended: bool = False  # this step changed the project's code

    def path(self, name: str) -> Path:
        """A file of this journey."""
        return self.folder / name

    def joymigrate(
        self,
        log: str,
        *words: str,
        ok: Sequence[int] = (0,),
        cwd: Path | None = None,
        draws: Path | None = None,
        memory: Path | None = None,
        reach: Path | None = None,
    ) -> CompletedCommand:
        """Run a joymigrate command in the project, or in the copy `cwd` of it.

        `draws`: random numbers are the same on both sides; this file names those that are not.
        `memory`: a folder for what the program's processes note about their device's memory.
        `reach`: a folder that names lines, for notes on which of them ran.
        """
        changes = numbers(words, draws) | ({MEMORY: str(memory)} if memory else {})
        changes |= {REACH: str(reach)} if reach else {}
        command = [sys.executable, "-m", "joymigrate", *words]
        with self.begin_as_first(words, cwd):
            done = self.call(log, command, cwd, {**os.environ, **changes})
        self.note(["joymigrate", *words], cwd, changes)
        if done.code not in ok:
            what = Text(
                "{command} ended with {code}", command=f"`joymigrate {words[0]}`", code=done.code
            )
            raise StepFailed(what, done.tail())
        return done

    def begin_as_first(
        self, words: Sequence[str], cwd: Path | None
    ) -> AbstractContextManager[None]:
        """Where a command runs the program in the project: without what earlier runs made there."""
        if cwd is not None or not is_run(words):
            return nullcontext()
        return made_files.begin_as_first(self.request.project, self.path(MADE))

    def note(
        self, words: Sequence[str], cwd: Path | None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Keep a command for those who repeat it."""
        set_first = [f"{name}={shlex.quote(value)}" for name, value in (variables or {}).items()]
        text = " ".join([*set_first, shlex.join(words)])
        self.ran.append(f"(cd {shlex.quote(str(cwd))} && {text})" if cwd else text)

    def plain(
        self,
        log: str,
        entry: Sequence[str],
        cwd: Path | None = None,
        draws: Path | None = None,
        stand_ins: bool = False,
    ) -> CompletedCommand:
        """Run the user's program as it is, on the GPU of this machine or its CPU; there by
        stand-ins for the GPU where asked."""
        self.note(entry, cwd)
        made = launching.environment(**numbers(("run",), draws))
        if stand_ins:
            made = DoorSettings(cards=self.request.devices or 1).environment(made)
        words = launching.resolve(entry, cwd or self.request.project)
        with self.begin_as_first(("run",), cwd):
            return self.call(log, words, cwd, launching.with_start(made))

    def call(
        self, log: str, command: list[str], cwd: Path | None, environment: Mapping[str, str]
    ) -> CompletedCommand:
        """Run a command with its output in one file."""
        path = self.path(log)
        path.parent.mkdir(parents=True, exist_ok=True)
        variables = {name: value for name, value in environment.items() if name not in PLACE}
        notes = path.with_name(f"{path.stem}-stops")
        variables |= {"PYTHONUNBUFFERED": "1", **prepare(notes)}
        place = cwd or self.request.project
        try:
            code, lines = timed_process.run(
                command, path, place, variables, lambda text: bool(losses([text]))
            )
        except OSError as error:
            raise JoyError(
                f"cannot start '{command[0]}': {error.strerror}",
                help="name the program with --entry as you would start it",
            ) from None
        return CompletedCommand(shlex.join(command), code, path, lines, notes)

    def load(self, name: str) -> Mapping[str, Any]:
        """A JSON file that a command wrote, with what its sentences are made of."""
        path = self.path(name)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            what = Text("{name} can't be read: {error}", name=name, error=error)
            raise StepFailed(what, "") from None
        if not isinstance(found, dict):
            raise StepFailed(Text("{name} holds no JSON object", name=name), "")
        read: Mapping[str, Any] = restore_texts(found)
        return read


class StepFailed(Exception):
    """A step could not do its work; `tail` quotes what the command printed last."""

    def __init__(self, what: str, tail: str) -> None:
        super().__init__(what)
        self.what, self.tail = what, tail
