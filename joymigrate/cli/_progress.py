"""How far a journey is, on stderr: a line per step; on a terminal also the one that runs."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from joymigrate.language import Language, Text, traits, width

if TYPE_CHECKING:
    from joymigrate.journey import PlannedStep, StepOutcome

MARKS = {"done": "ok  ", "failed": "FAIL", "stopped": "STOP", "skipped": "-   ", "kept": "kept"}
WIDTH = 10
EVERY_SECONDS = 1.0
TAIL_BYTES = 4096
LAST = "it printed last: {said}"
# A program that never ends is not told from a slow one: after so long, and again each time that it
# took twice as long, the user is told what can be done.
PATIENCE_SECONDS = 180.0
RUNNING = ("baseline", "rehearse", "coverage", "verify", "train")  # steps that run the program
ENDLESS = (
    "'{step}' still runs after {minutes} min. A program that never ends has to be bounded, with "
    "fewer steps in --entry; --train names a longer run for the losses; --once leaves out the "
    "baseline's further runs. Ctrl-C ends it and keeps the steps that are done."
)


class JourneyProgress:
    """Hears what a journey tells. Off a terminal a step is one line when it ended."""

    def __init__(
        self,
        *,
        quiet: bool,
        stream: TextIO | None = None,
        lang: str = "en",
        warns: bool | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        folder: Path | None = None,
    ) -> None:
        """`warns` says of a step that takes long; without it, unless `quiet`. `folder` is the
        journey's, where the logs of its commands grow."""
        self.say = Language(lang)
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.warns = not quiet if warns is None else warns
        self.patience_seconds = patience_seconds
        self.folder = folder
        self.terminal = self.stream.isatty() and not quiet
        self.running: str | None = None
        self.done: list[str] = []
        self.ended = threading.Event()
        self.clock: threading.Thread | None = None

    def __call__(self, event: str, planned: PlannedStep, outcome: StepOutcome | None) -> None:
        """One event: `begin`, `end`, `kept` or `skip`."""
        if outcome is None:
            self.begin(planned)
            return
        self.rest()
        mark = "kept" if event == "kept" else outcome.status.value
        if event == "kept" or outcome.status.value == "done":
            self.done.append(planned.name)
        if self.quiet:
            return
        took = f"  ({outcome.seconds:.1f} s)" if outcome.seconds and event != "kept" else ""
        said = self.say(outcome.held or outcome.summary)
        line = f"  {MARKS[mark]}  {planned.name:<{WIDTH}} {said}{took}"
        self.write(line + "\n")

    def begin(self, planned: PlannedStep) -> None:
        """Show the step that runs, with the seconds that it has taken so far."""
        self.running = planned.name
        warns = self.warns and planned.name in RUNNING
        if not (self.terminal or warns):
            return
        self.ended.clear()
        target = self.tick if self.terminal else self.wait
        self.clock = threading.Thread(target=target, args=(planned, warns), daemon=True)
        self.clock.start()

    def tick(self, planned: PlannedStep, warns: bool) -> None:
        """On a terminal: the line of the running step, every second."""
        began, patience = time.monotonic(), self.patience_seconds
        while True:
            took = time.monotonic() - began
            if warns and took >= patience:
                self.write(self.warning(planned.name, took) + "\n")
                patience = 2 * took
            line = f"  …     {planned.name:<{WIDTH}} {self.say(planned.title)}  {took:.0f} s"
            said = last_words(self.folder, planned.name)
            line = f"{line}  {said}" if said else line
            self.write(truncate(line, shutil.get_terminal_size().columns - 1))
            if self.ended.wait(EVERY_SECONDS):
                return

    def wait(self, planned: PlannedStep, warns: bool) -> None:
        """Elsewhere: nothing but the warning."""
        began, patience = time.monotonic(), self.patience_seconds
        while not self.ended.wait(patience - (time.monotonic() - began)):
            took = time.monotonic() - began
            self.write(self.warning(planned.name, took) + "\n")
            patience = 2 * took

    def warning(self, step: str, seconds: float) -> str:
        """What to do about a program that may never end."""
        text = self.say(ENDLESS, step=step, minutes=f"{seconds / 60:.0f}")
        said = last_words(self.folder, step)
        return f"  …     {text}" + (f"\n  …     {self.say(LAST, said=said)}" if said else "")

    def rest(self) -> None:
        """No step runs."""
        self.running = None
        if self.clock is not None:
            self.ended.set()
            self.clock.join()
            self.clock = None

    def write(self, text: str) -> None:
        """Write over the line of the running step."""
        self.stream.write(f"\r\033[K{text}" if self.terminal else text)
        self.stream.flush()

    def interrupted(self) -> str:
        """What a user who pressed Ctrl-C should know."""
        step = self.running
        self.rest()
        if self.terminal:
            self.write("")
        comma = traits(self.say.lang).marks["list"]
        kept = (
            Text("done and kept: {steps}", steps=comma.join(self.done))
            if self.done
            else "no step was finished"
        )
        head = self.say("interrupted in '{step}'; {kept}", step=step, kept=kept)
        return f"{head}\n{self.say('  help: the same command goes on from there')}"


def last_words(folder: Path | None, step: str) -> str:
    """The last line that the command which a step waits for has printed; empty for none."""
    if folder is None:
        return ""
    logs = [*(folder / step).glob("*.txt"), *(folder / "rounds").glob("*/log.txt")]
    try:
        newest = max(logs, key=lambda path: path.stat().st_mtime)
        with open(newest, "rb") as log:
            log.seek(max(0, newest.stat().st_size - TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()
    except (OSError, ValueError):
        return ""
    said = next((line for line in reversed(lines) if line.strip()), "")
    return "".join(one for one in said.strip() if one.isprintable())


def truncate(line: str, columns: int) -> str:
    """The start of a line that fits into so many columns."""
    while width(line) > columns:
        line = line[:-1]
    return line
