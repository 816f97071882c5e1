"""Inside the program: files are rewritten as they are imported, run as scripts, or collected.

Everything heavy is imported only when a file needs it. The file on disk is never touched, and the
interpreter's own bytecode cache is left alone, so a later run without the switch is unaffected.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import json
import marshal
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ENVIRONMENT = "JOYMIGRATE_SWITCH_PLAN"
OURS = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..")) + os.sep


class Rewriter:
    """The plan, and the new text of any file it covers."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.roots = tuple(root + os.sep for root in plan["roots"])

    def covers(self, path: str) -> bool:
        """Whether a file belongs to the user's project or to a package that is followed."""
        real = os.path.realpath(path)
        if real.startswith(OURS):
            return False  # joymigrate does not migrate itself
        if real in self.plan["files"]:
            return True
        inside = any(real.startswith(root) or real == root[:-1] for root in self.roots)
        return inside and not in_environment(real, self.roots)

    def text(self, path: str, data: bytes) -> bytes | None:
        """The rewritten content of a file; None when nothing changes."""
        planned = self.plan["files"].get(os.path.realpath(path))
        if planned is None:
            # Without a site when the plan was made, unless it was written since.
            return self.fresh(path, data)
        if planned["sha256"] != hashlib.sha256(data).hexdigest():
            return self.fresh(path, data)
        return apply_edits(data, planned["edits"])

    def fresh(self, path: str, data: bytes) -> bytes | None:
        """Rewrite a file that the plan does not know, by itself."""
        words = [word.encode() for word in self.plan["words"]]
        lower = data.lower()
        if not any(word in lower for word in words):
            return None
        from joymigrate import chips
        from joymigrate.rewrite import python
        from joymigrate.rewrite.context import Context
        from joymigrate.rewrite.source import Unreadable, decode
        from joymigrate.rewrite.switch.plan import edits_by_file, same_lines

        context = Context.between(chips.get(self.plan["chip"]), chips.get(self.plan["origin"]))
        try:
            found = python.findings(decode(path, data, python=True), context)
        except Unreadable:
            return None
        edits = edits_by_file(found, self.plan["leave"]).get(path, [])
        return apply_edits(data, same_lines(edits, data)) if edits else None

    def code(self, path: str, data: bytes) -> CodeType | None:
        """The compiled rewritten file, from the cache where it was compiled before."""
        new = self.text(path, data)
        if new is None:
            return None
        return compile_cached(
            new, path, lambda: compile(new, path, "exec", dont_inherit=True), "module"
        )


def compile_cached(text: bytes, path: str, compute: Callable[[], CodeType], kind: str) -> CodeType:
    """Code from the cache where this text was compiled before."""
    key = hashlib.sha256(text + f"\0{path}\0{sys.version}\0{kind}".encode()).hexdigest()
    kept = cache_folder() / f"{key}.bin"
    try:
        found: CodeType = marshal.loads(kept.read_bytes())
        return found
    except (OSError, ValueError, EOFError, TypeError):
        pass  # not compiled yet, or cut short
    code = compute()
    store(kept, marshal.dumps(code))
    return code


def apply_edits(data: bytes, edits: Sequence[Sequence[Any]]) -> bytes:
    """`data` with [start, end, text] edits made; texts are bytes as Latin-1."""
    pieces: list[bytes] = []
    at = 0
    for start, end, text in edits:
        pieces += (data[at:start], text.encode("latin-1"))
        at = end
    return b"".join([*pieces, data[at:]])


def in_environment(path: str, roots: tuple[str, ...]) -> bool:
    """Whether a file below a root lies in an installed environment inside it."""
    for root in roots:
        if path.startswith(root):
            inner = path[len(root) :].split(os.sep)
            return any(
                part in ("site-packages", "dist-packages", ".venv", "venv") for part in inner
            )
    return False


def cache_folder() -> Path:
    """Where compiled rewritten files are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "joymigrate" / "switch"


def store(path: Path, data: bytes) -> None:
    """Keep bytes under a name, atomically; a cache that can't be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        return


class SwitchLoader(SourceFileLoader):
    """Loads a module from its rewritten source, and from its own where nothing changes."""

    rewriter: Rewriter

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code = self.rewriter.code(path, self.get_data(path))
        return code if code is not None else super().get_code(fullname)


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
    from joymigrate.rewrite.switch.script import script_hook

    rewriter = Rewriter(plan)
    sys.meta_path.insert(0, Finder(rewriter))
    sys.path_hooks.insert(0, script_hook(rewriter))
