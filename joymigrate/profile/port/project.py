"""Names followed through the files of a project: where a function or a value is defined."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joymigrate.profile.port.dotted_names import dotted_name

DEEP = 6  # imports and aliases that are followed


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition of a name: a statement of a file, or (`node` None) a name of a library."""

    path: Path
    tree: ast.Module
    node: ast.stmt | None
    full: str
    when: str = ""  # the test that decides for this definition, where it is not known here


class Files:
    """Files below the roots, parsed once."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.trees: dict[Path, ast.Module] = {}

    def tree(self, path: Path) -> ast.Module:
        """The syntax of a file; an empty one where it is no Python."""
        if path not in self.trees:
            try:
                self.trees[path] = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, OSError):
                self.trees[path] = ast.Module([], [])
        return self.trees[path]

    def candidates(self, node: ast.ImportFrom, path: Path, name: str) -> Iterator[Path]:
        """Files that a module may be."""
        inner = (node.module or "").split(".") if node.module else []
        if node.level:
            bases = [path.parents[node.level - 1]] if node.level <= len(path.parents) else []
        else:
            bases = [*self.roots, *(parent for parent in path.parents)]
        for base in bases:
            for tail in ([*inner, name], inner):
                target = base.joinpath(*tail)
                for file in (target.with_suffix(".py"), target / "__init__.py"):
                    if tail and file.is_file():
                        yield file

    def places(
        self, name: str, path: Path, tree: ast.Module, deep: int = DEEP
    ) -> Iterator[Definition]:
        """Every definition that a dotted name can stand for, aliases and imports followed."""
        first, dot, rest = name.partition(".")
        for node, when in definitions(tree, first):
            if isinstance(node, ast.Import):
                yield Definition(
                    path, tree, None, f"{resolve_import(node, first)}{dot}{rest}", when
                )
            elif isinstance(node, ast.ImportFrom):
                yield from self.elsewhere(first, dot + rest, node, path, when, deep)
            elif (
                isinstance(node, ast.Assign) and dotted_name(node.value) not in ("", name) and deep
            ):
                inner = f"{dotted_name(node.value)}{dot}{rest}"
                yield from self.places(inner, path, tree, deep - 1)
            elif not rest:
                yield Definition(path, tree, node, name, when)

    def elsewhere(
        self, name: str, rest: str, node: ast.ImportFrom, path: Path, when: str, deep: int
    ) -> Iterator[Definition]:
        """Definitions of a name that a file imports."""
        original = next((a.name for a in node.names if (a.asname or a.name) == name), name)
        some = False
        for file in self.candidates(node, path, original) if deep else ():
            if file.stem == original and not rest:
                continue  # a module, no function
            inner = rest[1:] if file.stem == original else original + rest
            for place in self.places(inner, file, self.tree(file), deep - 1):
                some = True
                yield place
            if some:
                return
        if not some and not node.level:
            yield Definition(path, self.tree(path), None, f"{node.module}.{original}{rest}", when)

    def full_name(self, name: str, path: Path, tree: ast.Module) -> str:
        """The library's name behind a name of a file; the name itself where it is none's."""
        places = list(self.places(name, path, tree))
        outside = [one.full for one in places if one.node is None]
        return outside[0] if outside and len(outside) == len(places) else name


def resolve_import(node: ast.Import, name: str) -> str:
    """What a name of `import a.b as c` stands for."""
    one = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name)
    return one.name if one.asname else one.name.partition(".")[0]


def definitions(tree: ast.Module, name: str) -> Iterator[tuple[ast.stmt, str]]:
    """Statements that define a name in a file, with the undecided test around each."""
    for node, when in top(tree.body):
        if isinstance(node, ast.Import):
            for one in node.names:
                if (one.asname or one.name.partition(".")[0]) == name:
                    yield ast.Import([one]), when
        elif defines(node, name):
            yield node, when


def defines(node: ast.stmt, name: str) -> bool:
    """Whether a statement gives a name its value."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, ast.ImportFrom):
        return any((one.asname or one.name) == name for one in node.names)
    if isinstance(node, ast.Assign):
        return any(dotted_name(target) == name for target in node.targets)
    return isinstance(node, ast.AnnAssign) and dotted_name(node.target) == name and bool(node.value)


def top(body: list[ast.stmt], when: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Statements of a module, those of `if` and `try` as well; a test that is known decides."""
    for node in body:
        yield node, when
        if isinstance(node, ast.If):
            decided = known_test(node.test)
            said = "" if decided is not None else ast.unparse(node.test)
            if decided is not False:
                yield from top(node.body, said or when)
            if decided is not True:
                yield from top(node.orelse, f"not ({said})" if said else when)
        elif isinstance(node, ast.Try):
            yield from top([*node.body, *(s for h in node.handlers for s in h.body), *node.orelse],
                           when)  # fmt: skip


def known_test(test: ast.expr) -> bool | None:
    """The value of a test on an environment variable that is not set; None for any other."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = default_of(test.left), test.comparators[0]
        if left is not None and isinstance(right, ast.Constant):
            same = left.value == right.value
            if isinstance(test.ops[0], ast.Eq):
                return same
            return not same if isinstance(test.ops[0], ast.NotEq) else None
    return None


def default_of(node: ast.expr) -> ast.Constant | None:
    """The default of `os.environ.get(name, default)` or `os.getenv(name, default)`."""
    if not isinstance(node, ast.Call) or len(node.args) != 2:
        return None
    named = dotted_name(node.func).endswith(("environ.get", "getenv"))
    return node.args[1] if named and isinstance(node.args[1], ast.Constant) else None
