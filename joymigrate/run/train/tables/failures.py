"""What one process of several met, told to the others, so that none waits for it in silence.

    watch = Failures.watch()         # called by all ranks; `shard_tables` does it
    watch.tell(error)                # this process can't go on
    watch.of_others()                # what another one said, or None

A process that waits in a collective can't be woken: gloo has no call for it. So a thread looks
every second whether another process has failed. If so, and the main thread then stands idle at
one instruction for `PATIENCE_S`, it says whose failure it was and ends the process, as NCCL's own
watchdog does. A loop over one long call is seen at one instruction, too, but it uses the
processor; so may a wait that spins, and that is ended after `SPINS_S`. Uncaught exceptions tell by
themselves; an `AgreedError` came to all at once.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from joymigrate.errors import Exit, JoyError

KEY = "joymigrate/failed"
LOOK_S = 1.0
PATIENCE_S = 10.0  # for the error to come by itself: a pipeline leaves in 5
CLOSE_S = 10.0  # for one look to end
SPINS_S = 120.0  # at one instruction, with a busy processor
BUSY = 0.1  # part of the time that a thread computes: a sleeping wait takes far less
WORDS = 400  # of a message


class AgreedError(JoyError):
    """What all processes were told in the same exchange: they are still in step."""


class Failures:
    """The word of the first process that failed, in the group's store."""

    one: Failures | None = None

    def __init__(self, store: Any, rank: int, end: Callable[[str], None]) -> None:
        self.store, self.rank, self.end = store, rank, end
        self.lock = threading.Lock()  # a store's client takes one request at a time
        self.said = False
        self.alive = True
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look_on, daemon=True, name="failures")

    @classmethod
    def watch(cls) -> Failures:
        """The watch of this process; begun once, by all ranks."""
        if cls.one is None or not cls.one.alive:
            import torch.distributed as dist

            store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
            cls.one = Failures(store, dist.get_rank(), end_process)
            cls.one.thread.start()
            atexit.register(cls.one.close)
            tell_uncaught(cls.one)
        return cls.one

    def close(self) -> None:
        """Look no more. A thread that is inside the store while Python ends aborts the process."""
        self.over.set()
        if self.thread.is_alive():
            self.thread.join(CLOSE_S)

    def tell(self, error: BaseException) -> None:
        """Say what this process met; the first of all of them is kept. Passes on nothing twice."""
        if self.said or isinstance(error, IN_STEP):
            return
        self.said = True
        if self.of_others() is None:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            word = json.dumps({"rank": self.rank, "error": text[:WORDS]})
            with self.lock:
                try:
                    self.store.compare_set(KEY, "", word)
                except RuntimeError:  # the store is gone, and with it whoever kept it
                    self.alive = False

    def of_others(self) -> JoyError | None:
        """The error that another process told."""
        with self.lock:
            try:
                if not self.alive or not self.store.check([KEY]):
                    return None
                word = json.loads(self.store.get(KEY))
            except RuntimeError:
                self.alive = False
                return None
        if word["rank"] == self.rank:
            return None
        return JoyError(
            f"process {word['rank']} failed, so this one can't go on: {word['error']}",
            help=f"look at the messages of process {word['rank']}",
        )

    def look_on(self) -> None:
        """Wait for another's failure; then end this process where it stands still."""
        main = threading.main_thread().ident or 0
        found, before, idle_s, stood_s, computed = None, None, 0.0, 0.0, 0.0
        while self.alive and not self.said and not self.over.wait(LOOK_S):
            found = found or self.of_others()
            if found is None:
                continue
            frame = sys._current_frames().get(main)
            at = None if frame is None else (id(frame), frame.f_lasti)
            now = computed_s(main)
            idle = at == before and now - computed < BUSY * LOOK_S
            idle_s = idle_s + LOOK_S if idle else 0.0
            stood_s = stood_s + LOOK_S if at == before else 0.0
            before, computed = at, now
            if idle_s >= PATIENCE_S or stood_s >= SPINS_S:
                self.end(str(found))

    def explained(self, error: BaseException) -> BaseException:
        """The error of another process, where `error` is only what it led to; tells it on."""
        if isinstance(error, IN_STEP):
            return error
        found = self.of_others()
        self.tell(error)
        # A JoyError of this process says more itself; what a lost connection says does not.
        return error if found is None or isinstance(error, JoyError) else found


IN_STEP = (AgreedError, StopIteration, GeneratorExit)


def computed_s(thread: int) -> float:
    """Processor time that the thread with this identity took so far."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def end_process(message: str) -> None:
    """Where a thread waits in a collective for ever, nothing else ends it."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(Exit.ERROR)


def tell_uncaught(watch: Failures) -> None:
    """Tell what ends the program; and name the process that it came from."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        found = watch.explained(error)
        before(kind, error, trace)
        if found is not error:
            print(f"error: {found}", file=sys.stderr, flush=True)

    sys.excepthook = hook
