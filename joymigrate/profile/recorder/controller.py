"""Drives one recording: warm-up, timed steps, one exact step, done. Writes what it has at the end.

Everything from the import of torch to the end of the first step is recorded exactly as well, so
that a script without steps, one with few, or one that fails early, still leaves its operators; a
later exact step replaces it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from joymigrate.profile.recorder.files import claim
from joymigrate.profile.recorder.loading import watch_loading
from joymigrate.profile.recorder.operators import ProgramContext, Recording
from joymigrate.profile.recorder.settings import RecorderSettings
from joymigrate.profile.recorder.steps import Steps
from joymigrate.profile.recorder.timing import Timer


class StepController:
    """What happens at each step boundary of this process."""

    def __init__(self, settings: RecorderSettings, *, explicit: bool = False) -> None:
        self.settings = settings
        self.steps = Steps(explicit=explicit)
        self.context = ProgramContext()
        self.state = "first" if settings.warmup else "before"
        self.recording: Recording | None = None
        self.spare: Recording | None = None  # of the first step
        self.exact: Recording | None = None
        self.timer: Timer | None = None
        self.timed = False
        self.unmark: Callable[[], None] = lambda: None
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.facts: dict[str, Any] = {"optimisers": [], "autocast": None, "calls": {}}
        self.gc_us = 0.0
        self.gc_began = 0.0
        self.undo: list[Callable[[], None]] = []
        self.shadow: list[Any] = []  # the optimiser's step as an accelerator would take it
        self.paths: tuple[Any, Any] | None = None
        self.written = False
        self.reached = False  # the exact step came to its end
        self.touched = False  # a step began
        self.whole: Any = None  # watches what comes beside and after the exact step

    @property
    def watching(self) -> bool:
        """Whether this thread of this process is recorded, and the recording still goes on."""
        return (
            self.state != "done"
            and threading.get_ident() == self.thread
            and os.getpid() == self.pid
        )

    def open(self) -> None:
        """Record from here on: what comes before the first step may be all there is."""
        os.register_at_fork(after_in_child=self.forked)
        if multiprocessing.parent_process() is not None:
            self.begin_whole([], worker=True)
        elif self.recording is None:
            self.record()

    def close(self) -> None:
        """No recording before the first step: what is called now can't bear to be watched."""
        if self.watching and not self.touched and self.recording is not None:
            self.spare = self.end_recording()

    def forked(self) -> None:
        """A child of the program (a data loader's worker): only first occurrences are recorded."""
        if self.recording is not None:
            self.end_recording()
        if self.whole is not None:
            self.whole.abandon()
        self.whole = None
        self.begin_whole([], worker=True)

    def begin_whole(self, known: list[Any], *, worker: bool = False) -> None:
        """Watch the rest of the run; `known` calls were recorded already."""
        if self.whole is not None or self.steps.explicit:
            return
        from joymigrate.profile.recorder.whole_run import WholeRun

        self.whole = WholeRun(
            self.context, self.settings.session, worker=worker, stepping=lambda: self.watching
        )
        self.whole.start(known)

    def close_whole(self) -> None:
        """The process ends."""
        if self.whole is not None and os.getpid() == self.pid:
            self.whole.stop("exit")

    def touch(self) -> None:
        """Something happened that belongs to a step: the first one begins to be recorded."""
        if self.state == "first":
            if self.recording is None:
                self.record()
            elif not self.touched:
                self.recording.refresh()
        elif self.state == "before":
            self.spare = self.end_recording()
            self.begin_timing()
        self.touched = True

    def step(self, function: Callable[[], Any]) -> None:
        """Call a function that is one step."""
        self.touch()
        self.context.phase = "forward"
        function()
        self.context.phase = "other"
        self.steps.end()
        self.boundary()

    def record(self) -> None:
        """Begin to record exactly; tries again at the next call while other modes watch."""
        made = Recording(self.context)
        if made.begin():
            self.recording = made

    def boundary(self) -> None:
        """A step ended, and was counted."""
        done, settings = self.steps.done, self.settings
        if self.state == "first":
            self.spare = self.end_recording()
            self.begin_whole(list(self.spare.mode.signatures.values()) if self.spare else [])
            self.state = "warm"
        if self.state == "warm" and done >= settings.warmup:
            self.begin_timing()
        elif self.state == "timed" and self.timer is not None:
            if len(self.timer.step_us) + 1 < settings.steps:
                self.timer.step()
            else:
                self.end_timing()
                self.begin_exact()  # also without times
        elif self.state == "exact":
            self.exact = self.end_recording()
            self.reached = True
            self.finish()

    def begin_timing(self) -> None:
        """The timed steps begin; without timing, the exact one."""
        if not self.settings.timing or self.settings.steps == 0:
            self.begin_exact()
            return
        self.paths = self.paths or claim(self.settings)
        gc.collect()  # what the first step's recording left must not fall due in the timed ones
        try:
            self.timer = Timer(stack=self.settings.stack)
            self.timer.start()
        except Exception as error:  # another profiler runs: the program goes on as it would
            self.untimed(error)
            return
        gc.callbacks.append(self.on_gc)
        self.unmark = watch_loading(self)
        self.state = "timed"

    def untimed(self, error: Exception) -> None:
        """Go on without times, and say so."""
        print(f"record: no times, the profiler failed: {error}", file=sys.stderr)
        self.timer = None
        self.begin_exact()

    def end_timing(self) -> None:
        """The timed steps are over: their trace is written."""
        if self.timer is None or self.paths is None or self.timed:
            return
        self.unmark()
        self.timer.mark()
        if self.on_gc in gc.callbacks:
            gc.callbacks.remove(self.on_gc)
        try:
            self.timer.stop(self.paths[1])
            self.timed = True
        except Exception as error:
            print(f"record: no times, the profiler failed: {error}", file=sys.stderr)
            self.timer = None

    def begin_exact(self) -> None:
        """The exact step begins."""
        self.state = "exact"
        self.record()

    def end_recording(self) -> Recording | None:
        """Take the mode off; None where none was on."""
        made, self.recording = self.recording, None
        if made is not None:
            made.end()
        return made

    def on_gc(self, phase: str, info: dict[str, int]) -> None:
        """Time that the garbage collector took in the timed steps."""
        now = time.perf_counter()
        if phase == "start":
            self.gc_began = now
        else:
            self.gc_us += (now - self.gc_began) * 1e6

    def finish(self) -> None:
        """Write what was recorded, and let go of the program. Safe to call again, and at exit."""
        if os.getpid() != self.pid or self.written:
            return
        self.written = True
        if self.state == "timed":
            self.end_timing()
        cut_short = self.end_recording()
        if self.state == "exact":
            self.exact = self.exact or cut_short
        else:
            self.spare = self.spare or cut_short
        self.state = "done"
        for undo in self.undo:
            undo()
        self.undo.clear()
        recording = self.choose_recording()
        if recording is None:
            return
        from joymigrate.profile.recorder.write import write

        try:
            path = write(self, recording)
            if self.whole is not None:
                self.whole.tell({"kind": "out", "path": str(path)})
        except Exception as error:  # a full disk must not change the program's outcome
            print(f"record: nothing written: {type(error).__name__}: {error}", file=sys.stderr)

    def choose_recording(self) -> Recording | None:
        """The exact step, unless it was cut short and the first step saw more."""
        made = [r for r in (self.exact, self.spare) if r is not None and r.mode.signatures]
        if self.exact in made and self.reached:
            return self.exact
        return max(made, key=lambda r: len(r.mode.signatures), default=None)
