"""Installs the fills in every process of a program, as soon as the chip's package was imported.

`JOYMIGRATE_SWITCH` names `start` (see run/rehearse/start/sitecustomize.py), `JOYMIGRATE_FILL` the
chip.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ENVIRONMENT = "JOYMIGRATE_FILL"
HOOK = "joymigrate.run.fill.start:start"


def start() -> None:
    """Wait for the chip's package in this process. Calling it twice changes nothing."""
    chip = os.environ.get(ENVIRONMENT)
    if not chip or any(isinstance(finder, Watch) for finder in sys.meta_path):
        return
    from joymigrate import chips

    package = chips.target(chip).package
    if package:
        sys.meta_path.insert(0, Watch(package, chip))


class Watch(MetaPathFinder):
    """Finds the package through the other finders, and wraps its loader."""

    def __init__(self, package: str, chip: str) -> None:
        self.package = package
        self.chip = chip

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.package:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Installing(spec.loader, self.chip)
                return spec
        return None


class Installing(Loader):
    """Loads the package, then installs the fills for its device."""

    def __init__(self, real: Any, chip: str) -> None:
        self.real = real
        self.chip = chip

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        from joymigrate.run import fill

        fill.install(self.chip)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # resource readers, get_source, …
