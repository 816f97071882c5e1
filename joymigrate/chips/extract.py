"""The names that a Python package binds, read from its source without importing it.

A package for a chip can't be imported on a machine without the chip, so its public names are read
from the syntax tree: definitions, assignments, imports inside the package (star imports are
followed), `__all__`, and sub-modules. Names that only C code binds are seen where `__all__` lists
them. What runs at import time, such as `setattr` in a loop, is not seen.
"""

from __future__ import annotations

import ast
import subprocess
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

DEPTH = 3  # `amp.autocast_mode.autocast` is as deep as programs reach


class Tree(Protocol):
    """Where source files are read from."""

    def read(self, path: str) -> str | None:
        """Text of the file at `path`, or None where there is none."""

    def children(self, folder: str) -> list[str]:
        """Names directly below `folder`."""


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A tree on disk: an installed package's parent, or a checkout."""

    root: Path

    def read(self, path: str) -> str | None:
        file = self.root / path
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None

    def children(self, folder: str) -> list[str]:
        path = self.root / folder
        return sorted(item.name for item in path.iterdir()) if path.is_dir() else []


@dataclass(frozen=True, slots=True)
class Wheel:
    """A tree inside a wheel."""

    archive: zipfile.ZipFile

    def read(self, path: str) -> str | None:
        try:
            return self.archive.read(path).decode("utf-8", errors="replace")
        except KeyError:
            return None

    def children(self, folder: str) -> list[str]:
        return children_of(self.archive.namelist(), folder)


@dataclass(slots=True)
class Revision:
    """A tree at one revision of a git repository."""

    repository: Path
    revision: str
    files: list[str] = field(default_factory=list)

    def git(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run git in the repository."""
        return subprocess.run(
            ["git", "-C", str(self.repository), *arguments], capture_output=True, check=False
        )

    def read(self, path: str) -> str | None:
        done = self.git("show", f"{self.revision}:{path}")
        return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None

    def children(self, folder: str) -> list[str]:
        if not self.files:
            listed = self.git("ls-tree", "-r", "--name-only", self.revision).stdout
            self.files = listed.decode().splitlines()
        return children_of(self.files, folder)


def children_of(files: Iterable[str], folder: str) -> list[str]:
    """First path components below `folder` among `files`."""
    prefix = folder.rstrip("/") + "/"
    return sorted({f[len(prefix) :].split("/")[0] for f in files if f.startswith(prefix)})


@dataclass(frozen=True, slots=True)
class ModuleNamespace:
    """The names of one module; `modules` maps those that are modules of the tree to their path."""

    names: frozenset[str]
    public: frozenset[str]
    modules: dict[str, str]


@dataclass(slots=True)
class Extractor:
    """Reads names of dotted modules below a tree."""

    tree: Tree
    root: str  # the dotted module whose names are wanted; only modules below it are opened
    seen: dict[str, ModuleNamespace | None] = field(default_factory=dict)

    def inside(self, module: str) -> bool:
        """Whether `module` is the root or below it."""
        return module == self.root or module.startswith(f"{self.root}.")

    def locate(self, module: str) -> tuple[str, bool] | None:
        """File of a dotted module and whether it is a package; None outside the tree."""
        path = module.replace(".", "/")
        for file, package in ((f"{path}/__init__.py", True), (f"{path}.py", False)):
            if self.tree.read(file) is not None:
                return file, package
        return None

    def bound(self, module: str) -> ModuleNamespace | None:
        """What `module` binds, or None for a module outside the tree."""
        if module not in self.seen:
            self.seen[module] = None  # a cycle of star imports adds nothing
            self.seen[module] = self.compute(module)
        return self.seen[module]

    def compute(self, module: str) -> ModuleNamespace | None:
        found = self.locate(module)
        if found is None:
            return None
        file, package = found
        tree = ast.parse(self.tree.read(file) or "")
        collector = Collector(self, module, package)
        collector.visit_body(tree.body)
        exported = collector.exported
        names = collector.names | exported
        modules = dict(collector.modules)
        if package:
            for child in self.tree.children(module.replace(".", "/")):
                name = child.removesuffix(".py")
                if name in collector.names or name.startswith("_") or not name.isidentifier():
                    continue
                if self.locate(f"{module}.{name}"):
                    names.add(name)
                    modules[name] = f"{module}.{name}"
        names = {name for name in names if not name.startswith("__")}
        public = {name for name in names if not name.startswith("_")}
        if collector.declared:
            public = exported
        return ModuleNamespace(frozenset(names), frozenset(public), modules)

    def members(self, name: str) -> set[str]:
        """Public methods of the class that the root binds as `name`."""
        for module in [f"{self.root}.{name}", *self.seen]:
            found = self.locate(module)
            tree = ast.parse(self.tree.read(found[0]) or "") if found else None
            for node in tree.body if tree else ():
                if isinstance(node, ast.ClassDef) and node.name == name:
                    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                    inner = {item.name for item in node.body if isinstance(item, kinds)}
                    return {item for item in inner if not item.startswith("_")}
        return set()

    def dotted(self, module: str | None = None, depth: int = DEPTH) -> Iterator[str]:
        """Every name below `module` (the root), sub-modules' names dotted (`amp.autocast`)."""
        module = module or self.root
        bound = self.bound(module)
        if bound is None:
            return
        for name in sorted(bound.names):
            yield name
            inner = bound.modules.get(name)
            if inner is None or depth <= 1 or name.startswith("_") or inner == module:
                continue
            for below in self.dotted(inner, depth - 1):
                yield f"{name}.{below}"


@dataclass(slots=True)
class Collector:
    """Collects what the statements of one module bind."""

    extractor: Extractor
    module: str
    package: bool
    names: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    declared: bool = False  # `__all__` is there, even if it is empty
    modules: dict[str, str] = field(default_factory=dict)

    def visit_body(self, body: list[ast.stmt]) -> None:
        """Walk statements, both arms of conditions included."""
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.names.add(node.name)
                case ast.Assign():
                    for target in node.targets:
                        self.assign(target, node.value)
                case ast.AnnAssign() if node.value is not None:
                    self.assign(node.target, node.value)
                case ast.AugAssign():
                    self.assign(node.target, node.value)
                case ast.Import():
                    self.import_modules(node)
                case ast.ImportFrom():
                    self.import_from(node)
                case ast.Delete():
                    for target in node.targets:
                        if isinstance(target, ast.Name):
                            self.names.discard(target.id)
                case ast.If():
                    self.visit_body([*node.body, *node.orelse])
                case ast.Try():
                    self.visit_body([*node.body, *node.orelse, *node.finalbody])
                    for handler in node.handlers:
                        self.visit_body(handler.body)
                case ast.With():
                    self.visit_body(node.body)
                case _:
                    pass

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Bind the names of an assignment's target; `__all__` lists are exported."""
        if isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self.assign(item, value)
            return
        if not isinstance(target, ast.Name):
            return
        if target.id == "__all__":
            self.declared = True
            self.exported |= {
                item.value
                for item in ast.walk(value)
                if isinstance(item, ast.Constant) and isinstance(item.value, str)
            }
            return
        self.names.add(target.id)

    def import_modules(self, node: ast.Import) -> None:
        """`import a.b as c` of a module inside the tree binds `c`."""
        for alias in node.names:
            if alias.asname and self.extractor.inside(alias.name):
                self.names.add(alias.asname)
                self.modules[alias.asname] = alias.name

    def import_from(self, node: ast.ImportFrom) -> None:
        """`from .x import y`: `y`, and `x` itself when it is a direct sub-module."""
        source = self.absolute(node)
        if source is None:
            return
        if not self.extractor.inside(source) and not any(a.name == "*" for a in node.names):
            # Bound here, defined elsewhere in the same distribution; other packages don't count.
            if source.split(".")[0] == self.module.split(".")[0]:
                self.names |= {alias.asname or alias.name for alias in node.names}
            return
        bound = self.extractor.bound(source)
        if bound is None:  # `from . import x` of the package that is being read, or a cycle
            for alias in node.names:
                if source == self.module or self.extractor.locate(f"{source}.{alias.name}"):
                    self.names.add(alias.asname or alias.name)
                if self.extractor.locate(f"{source}.{alias.name}"):
                    self.modules[alias.asname or alias.name] = f"{source}.{alias.name}"
            return
        head, _, tail = source.rpartition(".")
        if head == self.module and self.package:
            self.names.add(tail)
            self.modules[tail] = source
        for alias in node.names:
            if alias.name == "*":
                self.names |= bound.public
                self.modules |= bound.modules
                continue
            name = alias.asname or alias.name
            self.names.add(name)
            inner = f"{source}.{alias.name}"
            if alias.name in bound.modules:
                self.modules[name] = bound.modules[alias.name]
            elif self.extractor.locate(inner):
                self.modules[name] = inner
            else:  # `from .mstx import mstx`: the class hides the module
                self.modules.pop(name, None)

    def absolute(self, node: ast.ImportFrom) -> str | None:
        """The dotted module that a `from` import names."""
        if node.level == 0:
            return node.module
        parts = self.module.split(".")
        keep = len(parts) - node.level + (1 if self.package else 0)
        if keep <= 0:
            return None
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])
