"""Begins a recording in a process of the program: waits for torch, then watches it."""

from __future__ import annotations

import atexit
import contextlib
from pathlib import Path

from joymigrate import attach
from joymigrate.verify import made_files
from joymigrate.verify.settings import read_settings

WHO = "verify"


def start() -> None:
    """Wait for torch in this process. Calling it twice changes nothing."""
    settings = read_settings()
    if attach.waits(WHO) or settings is None:
        return
    if settings.again:
        made_files.note_made(settings.path / made_files.NOTE)
    atexit.register(say_crash, settings.path)  # runs after what `begin` registers
    attach.after_import("torch", begin, who=WHO)


def begin() -> None:
    """Watch torch, which was just imported."""
    from joymigrate.verify.watch import install

    settings = read_settings()
    if settings is None:
        return
    finish = install(settings)
    atexit.register(finish)
    attach.before_termination(finish)


def say_crash(bundle: Path) -> None:
    """Say in the bundle's folder what ended this process, if an exception did."""
    from joymigrate.verify import crash

    with contextlib.suppress(OSError):  # the program's own words are on the terminal
        crash.leave(bundle)
