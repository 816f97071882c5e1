"""Watches a process's device memory: a curve over time, and what it holds in the first steps.

`JOYMIGRATE_MEMORY` names a folder with `settings.json`; every process writes what it saw there.
The program is not changed: hooks that torch offers for it set marks at optimiser steps and
backward passes, until the third step has ended. The allocator's own record says the rest (see
blocks.py). The curve over time goes on to the end.

Tensors are looked at in the program's own threads only: torch moves their memory (`model.to`,
gradients that are added up) without a lock, and another thread that reads them then may crash.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate import attach, settings
from joymigrate.files import replace_file
from joymigrate.run.rehearse.memory.blocks import CATEGORIES, MemoryMark, composition, events_of
from joymigrate.run.rehearse.memory.owners import Owners

ENVIRONMENT = "JOYMIGRATE_MEMORY"
SETTINGS = "settings.json"
STEPS = 3  # optimiser steps that are looked into
MOST_EVENTS = 100_000  # the allocator's record keeps so many
EARLY = 0.9  # of it: stop before it forgets the first ones
SAMPLE_EVERY_S = 0.1
SAVE_EVERY_S = 5.0
TIMELINE_LIMIT = 2000  # samples; every other one goes when it is full
LOOKS = 6  # at weights by the clock, where there are no optimiser steps
RECORDS = "_record_memory_history"
PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class WatchedDevice:
    """`package` brings the device to torch, `device` is torch's name of it."""

    package: str
    device: str


def start() -> None:
    """Watch this process where the environment asks for it. Called before the program's start."""
    folder = os.environ.get(ENVIRONMENT)
    if not folder or attach.waits("memory"):
        return
    try:
        asked = settings.read(WatchedDevice, Path(folder) / SETTINGS)
    except (OSError, ValueError):
        return  # the journey that asked is over
    attach.after_import(
        asked.package, lambda: MemoryWatch(Path(folder), asked.device).begin(), who="memory"
    )


class MemoryWatch:
    """One process. Nothing is asked of a device before the program itself has used it."""

    def __init__(self, folder: Path, device: str) -> None:
        import torch

        self.folder = folder
        self.device = device
        self.torch: Any = getattr(torch, device)
        self.began = time.time()
        self.timeline: list[tuple[float, int]] = []
        self.peaks: dict[int, int] = {}
        self.marks: list[MemoryMark] = []
        self.index: int | None = None  # the device that is looked into
        self.base = (0, 0)
        self.looking = False
        self.found: dict[str, Any] | None = None
        self.why = "the program did not use the device"
        self.undo: list[Callable[[], object]] = []
        self.owners = Owners(device)
        self.closed = False
        self.lock = threading.RLock()
        self.marking = False
        self.looked, self.next_look = 0, 0.0
        self.pending = PENDING(self.look)  # kept: the interpreter holds only its address

    def begin(self) -> None:
        """Wait for the device; see the process to its end."""
        later = getattr(self.torch, "_lazy_call", None)
        if later is None or not hasattr(getattr(self.torch, "memory", None), RECORDS):
            self.why = "this device's allocator keeps no record"
        else:
            later(self.record)
        self.undo.append(self.owners.hear())
        self.keep_peaks()
        atexit.register(self.finish)
        attach.before_termination(self.finish)
        os.register_at_fork(after_in_child=self.leave)
        threading.Thread(target=self.sample, name="joymigrate-memory", daemon=True).start()

    def leave(self) -> None:
        """In a forked child there is nothing to watch."""
        self.closed, self.looking = True, False

    # What the memory holds, in the first steps.

    def record(self) -> None:
        """The device is there and empty: have its allocator keep a record, and set marks."""
        if self.closed:
            return
        recorder = getattr(self.torch.memory, RECORDS)
        recorder("all", context=None, stacks="python", max_entries=MOST_EVENTS)
        self.undo.append(lambda: recorder(None))
        self.looking = True
        self.hook_steps()
        self.hook_backward()

    def hook_steps(self) -> None:
        """Marks around every optimiser's step. The hooks stay and do nothing in the end: torch goes
        through its table of them while they run, and bears no change of it."""
        from torch.optim import optimizer

        def begins(which: Any, args: Any, kwargs: Any) -> None:
            if self.looking:
                self.owners.optimisers.add(which)
                self.mark("step begins")

        def ends(which: Any, args: Any, kwargs: Any) -> None:
            if not self.looking:
                return
            self.owners.find_modules()
            self.mark("step ends")
            if sum(one.kind == "step ends" for one in self.marks) >= STEPS:
                self.conclude("steps")

        optimizer.register_optimizer_step_pre_hook(begins)
        optimizer.register_optimizer_step_post_hook(ends)

    def hook_backward(self) -> None:
        """Marks around every backward pass."""
        import torch

        real = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> None:
            self.mark("backward begins")
            try:
                real(*args, **kwargs)
            finally:
                self.mark("backward ends")

        def restore() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = real

        torch.autograd.backward = backward  # Tensor.backward looks it up here
        self.undo.append(restore)

    def mark(self, kind: str) -> None:
        """Note what is known now. Never in the program's way: a failure ends the looking."""
        if not self.looking:
            return
        with self.lock:
            self.marking = True
            try:
                owners = self.owners.addresses(gradients=kind != "backward begins")
                index = self.index if self.index is not None else self.owners.index
                if index is None:
                    return
                self.index = index
                came, went = self.counts(index)
                self.marks.append(MemoryMark(kind, came, went, owners))
                if came + 2 * went > EARLY * MOST_EVENTS:
                    self.conclude("events")
            except Exception as error:  # the program's own tensors may do anything
                self.why = f"{type(error).__name__}: {error}"
                self.stop()
            finally:
                self.marking = False

    def look(self, _: int | None = None) -> int:
        """Look at the weights, called by the interpreter in the main thread between two of its
        instructions. A program without an optimiser sets no other marks than these."""
        if self.closed or self.marking:
            return 0
        with suppress(Exception):  # the program's own tensors may do anything
            self.owners.look()
        if self.looking and self.looked < LOOKS and time.monotonic() > self.next_look:
            self.mark("look")
            self.looked += 1
            self.next_look = time.monotonic() + 0.2 * 3**self.looked
        return 0

    def counts(self, index: int) -> tuple[int, int]:
        """Blocks that came and went on a device so far."""
        stats = self.torch.memory_stats(index)
        return (
            int(stats.get("allocation.all.allocated", 0)) - self.base[0],
            int(stats.get("allocation.all.freed", 0)) - self.base[1],
        )

    def conclude(self, ended: str) -> None:
        """Read the allocator's record, say what the memory held, and stop looking."""
        with self.lock:
            if not self.looking:
                return
            try:
                self.read(ended)
            except Exception as error:
                self.why = f"{type(error).__name__}: {error}"
            self.stop()

    def read(self, ended: str) -> None:
        """`found`, from the record and the marks."""
        index = self.index if self.index is not None else self.owners.index
        if index is None:
            index = self.torch.current_device()
        trace = self.torch.memory._snapshot()["device_traces"][index]
        if len(trace) >= MOST_EVENTS:
            self.why = f"more than {MOST_EVENTS} allocations between two marks"
            return
        made = composition(events_of(trace), self.marks)
        kinds = [one.kind for one in self.marks]
        self.found = {
            "device": f"{self.device}:{index}",
            "ended": ended,
            "steps": made.steps,
            "backwards": kinds.count("backward ends"),
            "unit": "step" if made.steps else "event",
            "peak": {
                "at": made.peak[0],
                "bytes": dict(zip(CATEGORIES, made.peak[1], strict=True)),
                "total_bytes": sum(made.peak[1]),
            },
            "allocator_peak_bytes": int(self.torch.max_memory_allocated(index)),
            "points": [[x, *held] for x, held in made.points],
        }

    def stop(self) -> None:
        """Take every hook away."""
        self.looking = False
        for one in self.undo:
            one()
        self.undo.clear()

    # The curve over time.

    def keep_peaks(self) -> None:
        """A program that resets its peak must not hide the real one."""
        for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):
            real = getattr(self.torch, name, None)
            if real is None:
                continue

            def reset(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
                self.note_peaks()
                return _real(*args, **kwargs)

            setattr(self.torch, name, reset)

    def note_peaks(self) -> None:
        """The allocator's own peaks of the devices that are in use."""
        for index in self.used():
            most = int(self.torch.max_memory_allocated(index))
            self.peaks[index] = max(most, self.peaks.get(index, 0))

    def used(self) -> list[int]:
        """Devices that the program's modules lie on: asking about another one would wake it."""
        found = {self.owners.index, self.index} - {None}
        return sorted(index for index in found if index is not None)

    def sample(self) -> None:
        """Memory over time, to the end of the process."""
        saved = time.monotonic()
        while not self.closed:
            time.sleep(SAMPLE_EVERY_S)
            if self.closed or not self.torch.is_initialized():
                continue
            ctypes.pythonapi.Py_AddPendingCall(self.pending, None)
            used = self.used()
            if used:
                held = sum(int(self.torch.memory_allocated(index)) for index in used)
                self.timeline.append((round(time.time() - self.began, 3), held))
            if len(self.timeline) > TIMELINE_LIMIT:
                del self.timeline[1::2]
            if time.monotonic() - saved > SAVE_EVERY_S:
                saved = time.monotonic()
                self.save()

    # The end.

    def finish(self) -> None:
        """Write what is known when the process ends."""
        if self.closed:
            return
        self.closed = True
        if self.looking:
            self.conclude("exit")
        if self.torch.is_initialized():
            self.note_peaks()
            self.save()

    def save(self) -> None:
        """Write what this process saw so far, whole or not at all."""
        rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
        document = {
            "pid": os.getpid(),
            "rank": int(rank) if rank.isdigit() else None,
            "peak_bytes": {f"{self.device}:{i}": most for i, most in sorted(self.peaks.items())},
            "timeline": list(self.timeline),
            "held": self.found,
            "why_not": None if self.found else self.why,
        }
        path = self.folder / f"process-{os.getpid()}.json"
        with suppress(OSError):  # the journey is gone, and its folder with it
            replace_file(path, json.dumps(document).encode())
