"""Commands that a journey starts: they end with it, and Ctrl-C is heard while they start."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

GRACE_SECONDS = 5.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` of a command that ends when this process does, however it ends.

    A program that outlives its journey would write into the project beside the next one. Raises
    `OSError` where the command can't be started, `KeyboardInterrupt` for a Ctrl-C meanwhile.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with interrupts_kept():
            process = subprocess.Popen(list(command), preexec_fn=dying, **options)
    except BaseException:
        if process is not None:
            end(process)
        raise
    return process


def end(process: subprocess.Popen[bytes], grace: float = GRACE_SECONDS) -> None:
    """End a command; one that goes on for `grace` seconds is killed."""
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Let a Ctrl-C of the block take effect behind it.

    With `preexec_fn` Python forks by itself and runs the hooks of `os.register_at_fork`; it prints
    what they raise and goes on, with a KeyboardInterrupt too.
    """
    before = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or not callable(before):  # ignored, or deadly: nothing is raised
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


def dying_with_parent() -> Callable[[], None] | None:
    """A function for the child that has it end when this process dies. Linux only."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask


dying = dying_with_parent()
