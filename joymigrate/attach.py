"""Code of ours in a process of the user's program: it waits for a package, and leaves in order.

A program that is recorded or rehearsed is not changed. What watches it is started before its first
line (`run/rehearse/start/sitecustomize.py`), waits until the package it is about was imported, and
writes what it has before the process ends.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

Around = Callable[[Callable[[], None]], None]


def waits(who: str) -> bool:
    """Whether `who` waits for a package in this process."""
    return any(isinstance(finder, ImportWatch) and finder.who == who for finder in sys.meta_path)


def around_import(package: str, around: Around, *, who: str) -> None:
    """Call `around(load)` when `package` is imported; it calls `load()` to run the package's code.

    Several may wait for one package; the last one to come is the outermost.
    """
    if not waits(who):
        sys.meta_path.insert(0, ImportWatch(package, around, who))


def after_import(package: str, then: Callable[[], object], *, who: str) -> None:
    """Call `then` once `package` was imported: now, if it already was."""
    if sys.modules.get(package) is not None:  # None stands for "not installed"
        then()
        return

    def around(load: Callable[[], None]) -> None:
        load()
        then()

    around_import(package, around, who=who)


def before_termination(finish: Callable[[], object]) -> None:
    """Call `finish` before SIGTERM ends the process, unless the program handles it itself."""
    try:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def terminated(number: int, frame: FrameType | None) -> None:
            finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, terminated)
    except ValueError:
        return  # not in the main thread: signals can't be caught here


class ImportWatch(MetaPathFinder):
    """Finds the package through the finders behind it, and wraps its loader."""

    def __init__(self, package: str, around: Around, who: str) -> None:
        self.package = package
        self.around = around
        self.who = who

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.package or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Wrapped(spec.loader, self.around)
                return spec
        return None


class Wrapped(Loader):
    """Loads a package as its own loader does, inside of `around`."""

    def __init__(self, real: Any, around: Around) -> None:
        self.real = real
        self.around = around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.around(lambda: self.real.exec_module(module))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # resource readers, get_source, …
