"""One kernel with what it needs, as a file that imports by itself: helpers, constants, imports.

Decorators that tune are left out. Names are followed into other files below the same roots.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.profile.port.dotted import dotted

ABLE = frozenset(("triton", "math", "torch", "contextvars", "functools"))
BUILTIN = frozenset(dir(builtins))
KEPT = frozenset(("_OnCores",))


class Missing(JoyError):
    """A name that is defined nowhere in the files that were read."""


def extract(path: Path, source: bytes, kernel: str, roots: list[Path]) -> str:
    """The text of a file with the kernel and everything that it uses. Raises Missing."""
    files = Files(roots)
    parts: dict[str, str] = {}
    files.take(kernel, path, ast.parse(source), parts, ())
    return "from __future__ import annotations\n" + "\n".join(parts.values()) + "\n"


class Files:
    """Files below the roots, parsed once."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.trees: dict[Path, ast.Module] = {}

    def take(
        self, name: str, path: Path, tree: ast.Module, parts: dict[str, str], busy: tuple[str, ...]
    ) -> None:
        """Add the definition of a name, after what it uses itself."""
        if name in parts or name in BUILTIN or name in busy:
            return
        defined = list(definitions(tree, name))
        for node in defined:
            if isinstance(node, ast.ImportFrom):
                if self.imported(name, node, path, parts, busy):
                    return
                continue
            if isinstance(node, ast.FunctionDef):
                node = plain(node)
            for inner in used(node):
                self.take(inner, path, tree, parts, (*busy, name))
            parts[name] = ast.unparse(node)
            return
        raise Missing(f"'{name}' is not defined in the files that were read", where=str(path))

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
            tree = self.trees.setdefault(file, ast.parse(file.read_bytes()))
            try:
                self.take(original, file, tree, parts, busy)
            except Missing:
                continue
            if original != name:
                parts[name] = f"{name} = {original}"
            return True
        return False

    def candidates(self, node: ast.ImportFrom, path: Path, name: str) -> Iterator[Path]:
        """Files that a module may be."""
        inner = (node.module or "").split(".") if node.module else []
        if node.level:
            bases = [path.parents[node.level - 1]]
        else:
            bases = [*self.roots, *(parent for parent in path.parents)]
        for base in bases:
            for tail in ([*inner, name], inner):
                target = base.joinpath(*tail)
                for file in (target.with_suffix(".py"), target / "__init__.py"):
                    if tail and file.is_file():
                        yield file


def definitions(tree: ast.Module, name: str) -> Iterator[ast.stmt]:
    """Statements that define a name in a file."""
    for node in top(tree.body):
        if isinstance(node, ast.Import):
            for one in node.names:
                if (one.asname or one.name.partition(".")[0]) == name:
                    yield ast.Import([one])
        elif defines(node, name):
            yield node


def defines(node: ast.stmt, name: str) -> bool:
    """Whether a statement gives a name its value."""
    if isinstance(node, ast.FunctionDef):
        return node.name == name
    if isinstance(node, ast.ClassDef):
        return node.name == name and name in KEPT
    if isinstance(node, ast.ImportFrom):
        return any((one.asname or one.name) == name for one in node.names)
    if isinstance(node, ast.Assign):
        return any(dotted(target) == name for target in node.targets)
    return isinstance(node, ast.AnnAssign) and dotted(node.target) == name and bool(node.value)


def top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those inside of `if` and `try` as well."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from top([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from top([*node.body, *(s for h in node.handlers for s in h.body), *node.orelse])


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
    name = dotted(call)
    if name.endswith("heuristics"):
        return "_axis(" in ast.unparse(decorator)
    return name.rpartition(".")[2] in ("jit", "_OnCores", "constexpr_function")


def used(node: ast.AST) -> list[str]:
    """Names that a definition reads from its module."""
    bound = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
    bound |= {n.id for n in ast.walk(node)
              if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    bound |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
    read = {n.id: None for n in ast.walk(node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}  # fmt: skip
    return [name for name in read if name not in bound]
