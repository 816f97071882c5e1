"""Begins a recording in a process of the program: waits for torch, then watches it."""

from __future__ import annotations

import atexit

from joymigrate import attach
from joymigrate.verify.settings import read_settings

WHO = "verify"


def start() -> None:
    """Wait for torch in this process. Calling it twice changes nothing."""
    if not attach.waits(WHO) and read_settings() is not None:
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
