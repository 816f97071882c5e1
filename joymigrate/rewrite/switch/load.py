"""Inside the program: files are rewritten as they are imported, run as scripts, or collected."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from joymigrate.rewrite.switch.rewriter import Rewriter, SwitchLoader
from joymigrate.rewrite.switch.script import script_hook

ENVIRONMENT = "JOYMIGRATE_SWITCH_PLAN"


class Finder(MetaPathFinder):
    """Puts the switch's loader in front of the files it covers, and waits for two packages."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        after = {"torch": self.torch_loaded, "_pytest.assertion.rewrite": self.pytest_loaded}
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or not spec.origin:
            return None
        if name in after:
            spec.loader = Followed(spec.loader, after[name])
            return spec
        if type(spec.loader) is SourceFileLoader and self.rewriter.covers(spec.origin):
            spec.loader = loader(self.rewriter, name, spec.origin)
            return spec
        return None

    def torch_loaded(self, module: ModuleType) -> None:
        """Load the chip's package, where torch does not load backends by itself.

        Rewritten code names the package, and its files have no line that imports it (lines keep
        their numbers), so the name is made known everywhere.
        """
        package = self.rewriter.plan.get("package")
        if package:
            setattr(builtins, package, importlib.import_module(package))

    def pytest_loaded(self, module: Any) -> None:
        """Let pytest's assertion rewriting start from the rewritten source of test files."""
        rewriter = self.rewriter
        real_ast = module.ast

        class Ast:
            """`ast` as that module uses it, with `parse` given the switch's text."""

            def __getattr__(self, name: str) -> Any:
                return getattr(real_ast, name)

            def parse(self, source: bytes, filename: str = "<unknown>", **more: Any) -> Any:
                new = rewriter.text(filename, source) if rewriter.covers(filename) else None
                return real_ast.parse(new or source, filename=filename, **more)

        module.ast = Ast()
        # Test files compiled under the switch must not be found by a later run without it.
        module._write_pyc = lambda *given: False
        module._read_pyc = lambda *given, **more: None


def loader(rewriter: Rewriter, name: str, path: str) -> SwitchLoader:
    """The switch's loader for one file."""
    made = SwitchLoader(name, path)
    made.rewriter = rewriter
    return made


class Followed(Loader):
    """A loader with something to do after the module ran."""

    def __init__(self, real: Any, then: Any) -> None:
        self.real = real
        self.then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        self.then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def start() -> None:
    """Install the switch in this process; called when the interpreter starts."""
    path = os.environ.get(ENVIRONMENT)
    if not path or any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    try:
        plan = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # the run that made the plan is over
    rewriter = Rewriter(plan)
    sys.meta_path.insert(0, Finder(rewriter))
    sys.path_hooks.insert(0, script_hook(rewriter))
