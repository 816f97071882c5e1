"""How far a journey is, on stderr: a line per step; on a terminal also the one that runs."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from joymigrate.language import Language, Text, width

if TYPE_CHECKING:
    from joymigrate.journey import Outcome, Planned

MARKS = {"done": "ok  ", "failed": "FAIL", "stopped": "STOP", "skipped": "-   ", "kept": "kept"}
WIDTH = 10
EVERY_SECONDS = 1.0


class Going:
    """Hears what a journey tells. Off a terminal a step is one line when it ended."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None, lang: str = "en") -> None:
        self.say = Language(lang)
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.terminal = self.stream.isatty() and not quiet
        self.running: str | None = None
        self.done: list[str] = []
        self.ended = threading.Event()
        self.clock: threading.Thread | None = None

    def __call__(self, event: str, planned: Planned, outcome: Outcome | None) -> None:
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

    def begin(self, planned: Planned) -> None:
        """Show the step that runs, with the seconds that it has taken so far."""
        self.running = planned.name
        if not self.terminal:
            return
        self.ended.clear()
        began = time.monotonic()

        def tick() -> None:
            while True:
                took = f"{time.monotonic() - began:.0f} s"
                line = f"  …     {planned.name:<{WIDTH}} {self.say(planned.title)}  {took}"
                self.write(cut(line, shutil.get_terminal_size().columns - 1))
                if self.ended.wait(EVERY_SECONDS):
                    return

        self.clock = threading.Thread(target=tick, daemon=True)
        self.clock.start()

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
        comma = "、" if self.say.lang == "zh" else ", "
        kept = (
            Text("done and kept: {steps}", steps=comma.join(self.done))
            if self.done
            else "no step was finished"
        )
        head = self.say("interrupted in '{step}'; {kept}", step=step, kept=kept)
        return f"{head}\n{self.say('  help: the same command goes on from there')}"


def cut(line: str, columns: int) -> str:
    """The start of a line that fits into so many columns."""
    while width(line) > columns:
        line = line[:-1]
    return line
