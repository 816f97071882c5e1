"""Commands that a journey starts: they end with it, and Ctrl-C is heard while they start."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from joymigrate.orphans import end_with

GRACE_SECONDS = 5.0


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` of a command that ends when this process does, however it ends.

    A program that outlives its journey would write into the project beside the next one. Raises
    `OSError` where the command can't be started, `KeyboardInterrupt` for a Ctrl-C meanwhile.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with interrupts_kept():
            process = subprocess.Popen(list(command), preexec_fn=end_with(os.getpid()), **options)
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
