"""What a program's code leads to: definitions of the project, from name to name.

A file that a program imports may hold much that it never runs. Here only the functions, classes
and variables count whose names it uses, and what these use in turn. Where one of them finds code
by a text (a registry, `import_module`), all that its file imports counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from joymigrate.rewrite.exports import Exports
from joymigrate.rewrite.import_trees import Trees
from joymigrate.rewrite.module_index import GUARD

Unit = tuple[str, str]  # a file and a name at its top level; no name: what its import runs
BY_TEXT = re.compile(
    r"import_module\(|__import__\(|instantiate\w*\(|entry_points\(|build_from_cfg|\bfrom_cfg\("
    r"|[Rr](?:egistry|EGISTRY)\w*\.(?:get\(|get\w*class|build|create)|\b[A-Z_]+S\.build\(|run_path\(|globals\(\)"
)
STEPS = 8  # modules that a name is handed on through


class Definitions:
    """The definitions of a project's files, read where they are asked for."""

    def __init__(
        self,
        trees: Trees,
        device_lines: Mapping[str, Iterable[int]],
        served: re.Pattern[str] | None = None,
    ) -> None:
        """`served` finds the target's names: code that has them serves it by itself."""
        self.trees, self.device_lines, self.served = trees, device_lines, served
        self.exports = Exports(trees.tree, trees.texts)
        self._units: dict[str, dict[str, list[ast.stmt]]] = {}
        self._imports: dict[str, tuple[dict[str, str], list[str]]] = {}
        self._edges: dict[Unit, set[Unit]] = {}
        self.uses: dict[Unit, set[str]] = {}  # dotted names of imports that a definition uses

    def lead_to_device(self, programs: Iterable[str], files: set[str]) -> set[str]:
        """The programs that run code for the device; `files` are those that import such code."""
        begun = {path: [(path, name) for name in ("", *self.units(path))] for path in programs}
        seen = {unit for units in begun.values() for unit in units}
        waiting = list(seen)
        callers: dict[Unit, set[Unit]] = {}
        hot: set[Unit] = set()
        while waiting:
            unit = waiting.pop()
            if self.is_hot(unit, files):
                hot.add(unit)
                continue
            for other in self.edges(unit):
                callers.setdefault(other, set()).add(unit)
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        waiting = list(hot)
        while waiting:
            fresh = callers.get(waiting.pop(), set()) - hot
            hot |= fresh
            waiting += fresh
        return {path for path, units in begun.items() if any(unit in hot for unit in units)}

    def find_met(
        self, program: str, lines: Mapping[str, Iterable[int]], names: Iterable[str]
    ) -> str | None:
        """A place that a program leads to, of some `lines` or with some dotted `names`.

        As `path:line`, or the name. None for none.
        """
        waiting: list[Unit] = [(program, name) for name in ("", *self.units(program))]
        seen = set(waiting)
        while waiting:
            path, name = unit = waiting.pop()
            for part in self.units(path).get(name, ()):
                for line in lines.get(path, ()):
                    if first_line(part) <= line <= (part.end_lineno or line):
                        return f"{path}:{line}"
            fresh = self.edges(unit) - seen
            for used in self.uses[unit]:
                for known in names:
                    if f"{used}.".startswith(f"{known}."):
                        return known
            seen |= fresh
            waiting += fresh
        return None

    def is_hot(self, unit: Unit, files: set[str]) -> bool:
        """Whether a definition holds code for the device, or finds code by a text."""
        path, name = unit
        lines = self.device_lines.get(path, ())
        parts = self.units(path).get(name, ())
        holding = [
            e for e in parts if any(first_line(e) <= n <= (e.end_lineno or n) for n in lines)
        ]
        if any(not self.is_served(path, each) for each in holding):
            return True
        if path not in files or not name:
            return False
        text = self.trees.texts[path]
        if not BY_TEXT.search(text) and "getattr(" not in text:
            return False
        rows = text.splitlines()
        own = self.imports(path)[0].items()
        named = {alias: dotted for alias, dotted in own if self.trees.tree.locate(path, dotted)}
        return any(
            BY_TEXT.search("\n".join(rows[each.lineno - 1 : each.end_lineno]))
            or any(is_looked_up(node, named) for node in ast.walk(each))
            for each in parts
        )

    def has_device(self, path: str) -> bool:
        """Whether a file has code for the device that does not serve the target as well."""
        if not self.device_lines.get(path):
            return False
        if self.served is None or not self.served.search(self.trees.texts[path]):
            return True
        return any(self.is_hot((path, name), set()) for name in self.units(path))

    def is_served(self, path: str, node: ast.stmt) -> bool:
        """Whether a definition has code for the target beside that for the origin."""
        if self.served is None or not self.served.search(self.trees.texts[path]):
            return False
        rows = self.trees.texts[path].splitlines()[node.lineno - 1 : node.end_lineno]
        return self.served.search("\n".join(rows)) is not None

    def units(self, path: str) -> dict[str, list[ast.stmt]]:
        """The statements behind each name at the top level of a file."""
        if path not in self._units:
            tree = self.trees.of(path)
            found: dict[str, list[ast.stmt]] = {}
            for node in tree.body if tree is not None else ():
                runs = isinstance(node, (ast.Expr, ast.If, ast.For, ast.While, ast.With, ast.Try))
                guard = isinstance(node, ast.If) and GUARD.match(f"if {ast.unparse(node.test)}:")
                for name in find_bound(node) if not guard else ():
                    found.setdefault(name, []).append(node)
                if runs:
                    found.setdefault("__main__" if guard else "", []).append(node)
            self._units[path] = found
        return self._units[path]

    def imports(self, path: str) -> tuple[dict[str, str], list[str]]:
        """What a file's names stand for by its imports, and the modules of its `import *`."""
        if path not in self._imports:
            names: dict[str, str] = {}
            stars: list[str] = []
            tree = self.trees.of(path)
            for node in ast.walk(tree) if tree is not None else ():
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        top = alias.name if alias.asname else alias.name.partition(".")[0]
                        names[alias.asname or top] = top
                elif isinstance(node, ast.ImportFrom):
                    base = self.trees.tree.base_of(path, node)
                    for alias in node.names if base else ():
                        if alias.name == "*":
                            stars.append(str(base))
                        else:
                            names[alias.asname or alias.name] = f"{base}.{alias.name}"
            self._imports[path] = (names, stars)
        return self._imports[path]

    def edges(self, unit: Unit) -> set[Unit]:
        """The definitions that one uses by name."""
        if unit not in self._edges:
            path, name = unit
            own, (names, stars) = self.units(path), self.imports(path)
            found: set[Unit] = set()
            used = self.uses.setdefault(unit, set())
            for node in (each for part in own.get(name, ()) for each in ast.walk(part)):
                chain = chain_of(node)
                if chain is None:
                    continue
                head, _, rest = chain.partition(".")
                if head in own:
                    found.add((path, head))
                if head in names:
                    used.add(f"{names[head]}.{rest}".strip("."))
                    found |= self.locate(path, f"{names[head]}.{rest}".strip("."))
                elif head not in own:
                    found |= self.given(path, stars, head)
            if name in ("", "__main__"):
                used |= set(names.values())  # what the imports of the file run
                found |= {(each[0], "") for dotted in (*names.values(), *stars)
                          if (each := self.trees.tree.locate(path, dotted)) is not None
                          and each[0] in self.trees.texts}  # fmt: skip
            self._edges[unit] = found - {unit}
        return self._edges[unit]

    def locate(self, path: str, dotted: str, step: int = 0) -> set[Unit]:
        """The definition of a dotted name in the project, and what its module's import runs."""
        place = self.trees.tree.locate(path, dotted)
        if place is None or place[0] not in self.trees.texts or step > STEPS:
            return set()
        other, rest = place
        found: set[Unit] = {(other, "")}
        if not rest:
            above, _, last = dotted.rpartition(".")  # a package may call a function as a module
            package = self.trees.tree.locate(path, above) if above else None
            given = self.imports(package[0])[0].get(last) if package and not package[1] else None
            if package is not None and given not in (None, dotted):
                found |= self.locate(package[0], str(given), step + 1)
            return found
        return found | self.locate_in(other, rest, step)

    def locate_in(self, path: str, rest: str, step: int) -> set[Unit]:
        """The definition of a name below a file's module, by what that one imports as well."""
        name, _, further = rest.partition(".")
        if name in self.units(path):
            return {(path, name)}
        names, stars = self.imports(path)
        if name in names:
            return self.locate(path, f"{names[name]}.{further}".strip("."), step + 1)
        return self.given(path, stars, rest, step + 1)

    def given(self, path: str, stars: Sequence[str], rest: str, step: int = 0) -> set[Unit]:
        """The definition of what a file has by `import *`, and what that import runs."""
        known = bool(stars) and step <= STEPS
        homes = self.exports.star_homes(path, stars, rest.partition(".")[0]) if known else ()
        found = {(home, "") for home in homes}
        return found.union(*(self.locate_in(home, rest, step) for home in homes))


def is_looked_up(node: ast.AST, named: Mapping[str, str]) -> bool:
    """Whether a module is asked for a name that a variable holds: `getattr(problem, name)`."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "getattr":
        return False
    return (
        len(node.args) > 1
        and getattr(node.args[0], "id", "") in named
        and not isinstance(node.args[1], ast.Constant)
    )


def first_line(node: ast.stmt) -> int:
    """The first line of a statement with its decorators."""
    marks: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in marks)])


def find_bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement at the top level binds, also inside of its branches."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from find_bound(child)
        elif isinstance(child, ast.ExceptHandler):
            for each in child.body:
                yield from find_bound(each)
        else:
            yield from (
                each.id for each in ast.walk(child)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            )  # fmt: skip


def chain_of(node: ast.AST) -> str | None:
    """The dotted text of a name or a chain of attributes; None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None
