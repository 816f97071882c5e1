"""Files where an object of some file's classes may come: a value goes by names that are imported.

    pkg/frame.py defines Frame             pkg/fold.py imports it, main.py takes `fold` of that: the
    pkg/__init__.py imports everything     files that these import may get a Frame, and others of
                                           the package not

What `__init__.py` hands on is followed to the file that has it. Where classes are registered
somewhere, or a package is imported as a whole, all files count that an import runs.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from joymigrate.rewrite.files_together import ReachableFiles, closure
from joymigrate.rewrite.module_index import GUARD, binds
from joymigrate.rewrite.source import read_text

IN_NOTEBOOK = re.compile(r"\b(?:from|import)[ ]+([A-Za-z_][\w.]*)")
REGISTERS = re.compile(r"regist", re.I)  # `@MODELS.register_module()`: made by a name in a table
DEPTH = 4  # packages that hand a name on


class ObjectFiles:
    """Which files take names of which, in a project's imports."""

    def __init__(self, reached: ReachableFiles) -> None:
        self.reached, self.tree, self.files = reached, reached.tree, reached.files
        self._sources: dict[str, set[str]] = {}

    def beside(self, others: Iterable[str]) -> set[str] | None:
        """The files of all programs that take something from `others`.

        None where nothing is seen to import one of them, and it starts no program by itself.
        """
        found: set[str] = set()
        for other in others:
            text = read_text(self.files[other].path)
            registers = REGISTERS.search(text) is not None
            onward = self.reached.imported if registers else self.sources
            above: dict[str, set[str]] = defaultdict(set)
            for path in self.tree.paths:
                for each in onward(path):
                    above[each].add(path)
            programs = closure([other], above.__getitem__)
            begun = [each for each in self.notebooks() if not each.isdisjoint(programs)]
            if not (above[other] or any(other in e for e in begun) or GUARD.search(text)):
                return None
            # A package that hands names on makes nothing itself.
            kept = {e for e in programs if registers or not e.endswith("__init__.py")}
            found |= closure(kept.union(*begun), onward)
        return found

    def notebooks(self) -> Iterator[set[str]]:
        """The project's files that each notebook imports."""
        for path in (path for path, file in self.files.items() if file.kind == "notebook"):
            names = set(IN_NOTEBOOK.findall(read_text(self.files[path].path)))
            yield {each[0] for name in names if (each := self.tree.locate(path, name)) is not None}

    def sources(self, path: str) -> set[str]:
        """The files that the names which a file imports come from."""
        if path not in self._sources:
            self._sources[path] = set()
            for node in self.reached.statements(path) if path in self.files else ():
                self._sources[path] |= set(self._of_import(path, node))
        return self._sources[path]

    def _of_import(self, path: str, node: ast.stmt) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                place = self.tree.locate(path, alias.name)
                if place is not None:
                    yield place[0]
        elif isinstance(node, ast.ImportFrom):
            base = self.tree.base_of(path, node)
            for alias in node.names if base is not None else ():
                dotted = base if alias.name == "*" else f"{base}.{alias.name}".strip(".")
                place = self.tree.locate(path, dotted or "")
                if place is not None:
                    yield from self.homes(*place)

    def homes(self, path: str, name: str, depth: int = DEPTH) -> set[str]:
        """The file that has a name which a package hands on; the package where none is seen."""
        first = name.partition(".")[0]
        if not first or not path.endswith("__init__.py") or not depth:
            return {path}
        for node in self.reached.statements(path):
            base = self.tree.base_of(path, node) if isinstance(node, ast.ImportFrom) else None
            for alias in node.names if isinstance(node, ast.ImportFrom) and base else ():
                if alias.name == "*":
                    place = self.tree.locate(path, base or "")
                    if place is not None and binds(read_text(self.files[place[0]].path), first):
                        return {place[0]}
                elif (alias.asname or alias.name) == first:
                    place = self.tree.locate(path, f"{base}.{alias.name}")
                    if place is not None and place[0] != path:
                        return self.homes(*place, depth - 1)
        return {path}
