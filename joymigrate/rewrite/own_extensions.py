"""Files that can't be loaded without an extension that the project builds for the origin alone.

    setup.py: CUDAExtension("ops_cuda", …)      ops.py: import ops_cuda
    fused = load("fused", ["fused.cu"])         at the top level of a file

Such a file, and one that imports it, does nothing on the target before the extension is ported: its
edits need a look. Imports inside a `try`, a condition or a function don't count, nor extensions
that the project builds without the origin as well (`CppExtension` in the other branch).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.device_tests import is_waiting
from joymigrate.rewrite.module_index import ModuleIndex

BUILDER = "CUDAExtension"
PORTABLE = "CppExtension"
LOADS = ("load", "load_inline")
ROUNDS = 8  # files that an import is followed through
LACKING = "this file can't be loaded without `{name}`, which is built for the origin"


def doubt(
    findings: Iterable[Finding], texts: Mapping[str, str], tree: ModuleIndex, target: str
) -> list[Finding]:
    """The findings; edits of files that can't be loaded are unsafe.

    `texts` are those of the Python files. A file that speaks of the `target` builds for it too.
    """
    found = list(findings)
    lacking = find_lacking(texts, tree, target)
    for number, one in enumerate(found) if lacking else ():
        name = lacking.get(one.path)
        if name is not None and one.edits and (one.tier is Tier.SAFE or is_waiting(one)):
            found[number] = replace(one, tier=Tier.UNSAFE, reason=Text(LACKING, name=name))
    return found


def find_lacking(texts: Mapping[str, str], tree: ModuleIndex, target: str = "") -> dict[str, str]:
    """Files that can't be loaded, each with the extension that it lacks."""
    own = {p: t for p, t in texts.items() if "cpp_extension" in t and not speaks(t, target)}
    names = find_names(own.values()) if own else set()
    trees = Trees(texts, tree)
    last = {name.rpartition(".")[2] for name in names}
    lacking: dict[str, str] = {}
    for path in own:
        built = builds(trees.of(path)) if any(f"{word}(" in texts[path] for word in LOADS) else None
        lacking |= {path: built} if built is not None else {}
    for path, text in texts.items() if last else ():
        if path not in lacking and any(word in text for word in last):
            imported = (each for each in trees.imports(path) if each in names)
            missing = (name for name in imported if not is_file(tree.locate(path, name)))
            first = next(missing, None)
            lacking |= {path: first} if first is not None else {}
    fresh = dict(lacking)
    for _ in range(ROUNDS):
        words = {import_name(path) for path in fresh}
        further: dict[str, str] = {}
        for path, text in texts.items() if words else ():
            if path in lacking or not any(word in text for word in words):
                continue
            other = next((each for each in trees.files(path) if each in fresh), None)
            if other is not None:
                further[path] = fresh[other]
        lacking |= further
        fresh = further
    return lacking


def speaks(text: str, target: str) -> bool:
    """Whether a text has the target's name."""
    return bool(target) and target in text.lower()


def is_file(place: tuple[str, str] | None) -> bool:
    """Whether a dotted name is a file of the project itself."""
    return place is not None and not place[1]


def import_name(path: str) -> str:
    """The last name by which a file is imported."""
    stem = path.removesuffix(".py").removesuffix("/__init__")
    return stem.rpartition("/")[2]


def find_names(texts: Iterable[str]) -> set[str]:
    """Names of the extensions that the project builds for the origin alone."""
    found: set[str] = set()
    for text in texts:
        tree = parse_text(text) if BUILDER in text else None
        if tree is not None and not (PORTABLE in text and builds_without(tree)):
            found.update(find_builder_names(tree))
    return found


def find_builder_names(tree: ast.Module) -> Iterator[str]:
    """Names that are given to the builder, or to what a variable may call it: `kind("ops", …)`."""
    nodes = list(ast.walk(tree))
    builders = {BUILDER}
    for node in nodes:
        if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Call):
            continue
        if any(getattr(each, "id", "") == BUILDER for each in ast.walk(node.value)):
            builders |= {str(getattr(target, "id", "")) for target in node.targets}
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", None))
        given = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        first = next(iter((*given, *node.args)), None) if called in builders else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def builds_without(tree: ast.Module) -> bool:
    """Whether a file that may build without the origin does not raise there."""
    for branch in ast.walk(tree):
        if not isinstance(branch, ast.If):
            continue
        named = any(getattr(each, "id", "") == BUILDER for p in branch.body for each in ast.walk(p))
        if named and any(isinstance(each, ast.Raise) for each in branch.orelse):
            return False
    return True


def builds(tree: ast.Module | None) -> str | None:
    """The extension with CUDA sources that a file builds as it is loaded; None for none."""
    for statement in tree.body if tree is not None else ():
        value = getattr(statement, "value", None)
        if not isinstance(statement, (ast.Assign, ast.Expr)) or not isinstance(value, ast.Call):
            continue
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        given = (*value.args, *(keyword.value for keyword in value.keywords))
        words = [e.value for part in given for e in ast.walk(part) if isinstance(e, ast.Constant)]
        sources = any(isinstance(word, str) and word.endswith(".cu") for word in words)
        inline = any(keyword.arg == "cuda_sources" for keyword in value.keywords)
        if name in LOADS and (sources or inline) and words:
            return str(words[0])
    return None


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
        """Dotted names that a file imports at its top level, without a condition."""
        tree = self.of(path)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self.tree.base_of(path, node)
                if base:
                    yield base
                    yield from (f"{base}.{alias.name}" for alias in node.names)

    def files(self, path: str) -> Iterator[str]:
        """Files of the project that a file loads at its top level."""
        for name in self.imports(path):
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


def parse_text(text: str) -> ast.Module | None:
    """The syntax tree of a text; None for one that is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
