"""Begins a recording in a process: waits for torch, and sees to it that something is written.

A program may end by its last line, an exception, `sys.exit`, or a signal that asks it to.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

from joymigrate import attach
from joymigrate.profile.recorder.settings import read_settings

WHO = "recorder"

_running: list[Any] = []  # the controller of this process


def start() -> None:
    """Wait for torch in this process. Calling it twice changes nothing."""
    if attach.waits(WHO):
        return
    settings = read_settings()
    if settings is None:
        return
    for package in settings.hidden:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]  # "not installed"
    attach.after_import("torch", begin, who=WHO)


def begin(*, explicit: bool = False) -> Any:
    """Install the recorder; torch has been imported. Returns the controller."""
    from joymigrate.profile.recorder.controller import StepController
    from joymigrate.profile.recorder.watch import install

    if _running:
        _running[0].steps.explicit |= explicit
        return _running[0]
    settings = read_settings()
    if settings is None:
        return None
    controller = StepController(settings, explicit=explicit)
    _running.append(controller)
    install(controller)
    if not explicit:
        controller.open()
    atexit.register(controller.close_whole)
    atexit.register(controller.finish)
    attach.before_termination(controller.finish)
    return controller
