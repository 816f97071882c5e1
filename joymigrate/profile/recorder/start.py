"""Begins a recording in a process: waits for torch, and sees to it that something is written.

A program may end by its last line, an exception, `sys.exit`, or a signal that asks it to.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

from joymigrate.profile.recorder.settings import read_settings

_running: list[Any] = []  # the controller of this process


def start() -> None:
    """Wait for torch in this process. Calling it twice changes nothing."""
    if any(isinstance(finder, Watch) for finder in sys.meta_path):
        return
    settings = read_settings()
    if settings is None:
        return
    for package in settings.hidden:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]  # "not installed"
    if "torch" in sys.modules:
        begin()
        return
    sys.meta_path.insert(0, Watch(begin))


def begin(*, explicit: bool = False) -> Any:
    """Install the recorder; torch has been imported. Returns the controller."""
    from joymigrate.profile.recorder.controller import Controller
    from joymigrate.profile.recorder.watch import install

    if _running:
        _running[0].steps.explicit |= explicit
        return _running[0]
    settings = read_settings()
    if settings is None:
        return None
    controller = Controller(settings, explicit=explicit)
    _running.append(controller)
    install(controller)
    if not explicit:
        controller.open()
    atexit.register(controller.finish)
    catch_termination(controller.finish)
    return controller


def catch_termination(finish: Callable[[], None]) -> None:
    """Write before SIGTERM ends the process, unless the program handles it itself."""
    try:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def terminated(number: int, frame: FrameType | None) -> None:
            finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, terminated)
    except ValueError:
        return  # torch was imported outside the main thread: signals can't be caught there


class Watch(MetaPathFinder):
    """Finds torch as usual, and wraps its loader."""

    def __init__(self, loaded: Callable[[], Any]) -> None:
        self.loaded = loaded

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loading(spec.loader, self.loaded)
        return spec


class Loading(Loader):
    """Loads torch, then calls back."""

    def __init__(self, real: Any, loaded: Callable[[], Any]) -> None:
        self.real = real
        self.loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        self.loaded()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # resource readers, get_source, …
