"""Begins a recording in a process of the program: waits for torch, then watches it."""

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

from joymigrate.verify.settings import read_settings


def start() -> None:
    """Wait for torch in this process. Calling it twice changes nothing."""
    if any(isinstance(finder, Watch) for finder in sys.meta_path) or read_settings() is None:
        return
    if "torch" in sys.modules:
        begin()
        return
    sys.meta_path.insert(0, Watch())


def begin() -> None:
    """Watch torch, which was just imported."""
    from joymigrate.verify.watch import install

    settings = read_settings()
    if settings is None:
        return
    finish = install(settings)
    atexit.register(finish)
    write_before_termination(finish)


def write_before_termination(finish: Callable[[], None]) -> None:
    """Write what is recorded before SIGTERM ends the process, unless the program handles it."""
    try:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def terminated(number: int, frame: FrameType | None) -> None:
            finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, terminated)
    except ValueError:
        return  # torch was imported outside of the main thread: signals can't be caught there


class Watch(MetaPathFinder):
    """Finds torch as usual, and wraps its loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loading(spec.loader)
        return spec


class Loading(Loader):
    """Loads torch, then begins."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # resource readers, get_source, …
