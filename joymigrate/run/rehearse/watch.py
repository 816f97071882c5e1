"""Waits for torch_npu in a process, and installs the device as soon as it was imported.

Works whichever way torch_npu comes in: by the program's own import, by torch loading its backends,
before torch or after it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from joymigrate.run.rehearse.settings import Settings, read_settings

PACKAGE = "torch_npu"
NO_HOME = "ASCEND_HOME_PATH environment variable is not set"


def start() -> None:
    """Wait for torch_npu in this process. Calling it twice changes nothing."""
    if any(isinstance(finder, Watch) for finder in sys.meta_path) or PACKAGE in sys.modules:
        return
    settings = read_settings()
    if settings is None:
        return
    # Everything runs at once: an asynchronous queue would race with memory that is read in place.
    os.environ["TASK_QUEUE_ENABLE"] = "0"
    sys.meta_path.insert(0, Watch(settings))


class Watch(MetaPathFinder):
    """Finds torch_npu as usual, and wraps its loader."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Installing(spec.loader, self.settings)
        return spec


class Installing(Loader):
    """Loads torch_npu on the simulated runtime, then installs the engine."""

    def __init__(self, real: Any, settings: Settings) -> None:
        self.real = real
        self.settings = settings

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        from joymigrate.run.rehearse.shim import Shim

        shim = Shim(self.settings)
        with without_home_warning():
            self.real.exec_module(module)
        from joymigrate.run.rehearse.install import install

        install(self.settings, shim)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # resource readers, get_source, …


@contextmanager
def without_home_warning() -> Iterator[None]:
    """Keep the program's stdout free of what torch_npu prints when no chip software is installed.

    Anything else that is printed while it is imported comes through.
    """
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        lines = said.getvalue().splitlines(keepends=True)
        sys.stdout.write("".join(line for line in lines if NO_HOME not in line))
