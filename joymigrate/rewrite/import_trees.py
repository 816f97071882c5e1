"""What files of a project import as they are loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from joymigrate.rewrite.guards import ends_block
from joymigrate.rewrite.module_index import ModuleIndex
from joymigrate.rewrite.own_extensions import parse_text


class Trees:
    """What files import as they are loaded; each is parsed once, and only where it is asked for."""

    def __init__(self, texts: Mapping[str, str], tree: ModuleIndex) -> None:
        self.texts, self.tree = texts, tree
        self._trees: dict[str, ast.Module | None] = {}

    def of(self, path: str) -> ast.Module | None:
        """The syntax tree of a file; None for one that is not valid Python."""
        if path not in self._trees:
            self._trees[path] = parse_text(self.texts[path])
        return self._trees[path]

    def imports(self, path: str) -> Iterator[str]:
        """Dotted names that a file imports at its top level, without a condition.

        An import in a `try` whose every handler raises or exits is needed as any other.
        """
        tree = self.of(path)
        for node in tree.body if tree is not None else ():
            needed = isinstance(node, ast.Try) and all(
                ends_block(each.body[-1]) for each in node.handlers
            )
            yield from self.named(path, node.body if needed else [node])  # type: ignore[attr-defined]

    def named(self, path: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
        """Dotted names that those of some nodes import which are imports."""
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self.tree.base_of(path, node)
                if base:
                    yield base
                    yield from (f"{base}.{alias.name}" for alias in node.names)

    def is_own(self, path: str, dotted: str) -> bool:
        """Whether a dotted name is a package of the project, or none: `import _C`."""
        return not dotted or self.tree.locate(path, dotted) is not None

    def files(self, path: str, names: Iterable[str] | None = None) -> Iterator[str]:
        """Files of the project that a file loads at its top level, or by some `names`."""
        for name in self.imports(path) if names is None else names:
            place = self.tree.locate(path, name)
            if place is not None:
                yield place[0]
                yield from self._packages(path, place[0])

    def _packages(self, path: str, other: str) -> Iterator[str]:
        """The `__init__.py` that run before another file is loaded, but for those around `path`."""
        folder = other.rpartition("/")[0]
        while folder and f"{folder}/__init__.py" in self.tree.paths:
            if not path.startswith(f"{folder}/"):
                yield f"{folder}/__init__.py"
            folder = folder.rpartition("/")[0]
