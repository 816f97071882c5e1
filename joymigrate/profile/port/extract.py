"""One kernel with what it needs, as a file that imports by itself: helpers, constants, imports.

Decorators that tune are left out. Names are followed into other files below the same roots.
"""

from __future__ import annotations

import ast
import builtins
import sys
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.profile.port.dotted_names import dotted_name
from joymigrate.profile.port.find import REEXPORTED
from joymigrate.profile.port.project import Files, definitions

ABLE = frozenset(("triton", "torch")) | sys.stdlib_module_names
BUILTIN = frozenset(dir(builtins))
KEPT = frozenset(("_OnCores",))


class Missing(JoyError):
    """A name that is defined nowhere in the files that were read."""


def extract(path: Path, source: bytes, kernel: str, roots: list[Path]) -> str:
    """The text of a file with the kernel and everything that it uses. Raises Missing."""
    files = Extract(roots)
    parts: dict[str, str] = {}
    files.take(kernel, path, ast.parse(source), parts, ())
    return "from __future__ import annotations\n" + "\n".join(parts.values()) + "\n"


class Extract(Files):
    """What one kernel needs, taken from the files of a project."""

    def take(
        self, name: str, path: Path, tree: ast.Module, parts: dict[str, str], busy: tuple[str, ...]
    ) -> None:
        """Add the definition of a name, after what it uses itself."""
        if name in parts or name in BUILTIN or name in busy:
            return
        written = ""
        for node, _ in definitions(tree, name):
            if isinstance(node, ast.ImportFrom):
                if not written and self.imported(name, node, path, parts, busy):
                    return
                continue
            if isinstance(node, ast.ClassDef) and name not in KEPT:
                continue
            if written and not isinstance(node, ast.Assign):
                continue
            if isinstance(node, ast.FunctionDef):
                node = self.called(node, path, tree, parts, (*busy, name))
            else:
                for inner in find_names(node):
                    self.take(inner, path, tree, parts, (*busy, name))
            # Of an attribute with several definitions the first that this machine has counts.
            written = either(written, ast.unparse(node)) if written else ast.unparse(node)
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)):
                break
        if not written:
            raise Missing(f"'{name}' is not defined in the files that were read", where=str(path))
        parts[name] = written

    def called(
        self, node: ast.FunctionDef, path: Path, tree: ast.Module, parts: dict[str, str],
        busy: tuple[str, ...],
    ) -> ast.FunctionDef:  # fmt: skip
        """A function with what it uses. A default that nobody knows is left out: it is drawn."""
        node = plain(node)
        defaults = node.args.defaults
        for place, default in enumerate(defaults):
            try:
                for inner in find_names(default):
                    self.take(inner, path, tree, parts, busy)
            except Missing:
                defaults[place] = ast.Constant(None)
        for inner in find_names(node):
            self.take(inner, path, tree, parts, busy)
        return node

    def imported(
        self, name: str, node: ast.ImportFrom, path: Path, parts: dict[str, str],
        busy: tuple[str, ...],
    ) -> bool:  # fmt: skip
        """Add a name that a file takes from elsewhere; False where that is not found."""
        original = next((a.name for a in node.names if (a.asname or a.name) == name), name)
        root = (node.module or "").partition(".")[0]
        if not node.level and root in ABLE:
            parts[name] = f"from {node.module} import {original} as {name}"
            return True
        for file in self.candidates(node, path, original):
            try:
                self.take(original, file, self.tree(file), parts, busy)
            except Missing:
                continue
            if original != name:
                parts[name] = f"{name} = {original}"
            return True
        if original in REEXPORTED:  # a project hands the language on
            parts[name] = f"import {REEXPORTED[original]} as {name}"
            return True
        return False


def either(first: str, second: str) -> str:
    """The first statement, or the second one where the first names what is not there."""
    inner = first.replace("\n", "\n    ")
    return f"try:\n    {inner}\nexcept AttributeError:\n    {second}"


def plain(node: ast.FunctionDef) -> ast.FunctionDef:
    """A function without the decorators that tune it, and without those nobody knows."""
    kept = [one for one in node.decorator_list if keeps(one)]
    made = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(made, ast.FunctionDef)
    made.decorator_list = kept
    return made


def keeps(decorator: ast.expr) -> bool:
    """The compiler's own decorator, and those of a port."""
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = dotted_name(call)
    if name.endswith("heuristics"):
        return "_axis(" in ast.unparse(decorator)
    return name.rpartition(".")[2] in ("jit", "_OnCores", "constexpr_function")


def find_names(node: ast.AST) -> list[str]:
    """Names that a definition reads from its module."""
    bound = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
    bound |= {n.id for n in ast.walk(node)
              if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    bound |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
    read = {n.id: None for n in ast.walk(node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}  # fmt: skip
    return [name for name in read if name not in bound]
