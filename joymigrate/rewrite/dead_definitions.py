"""Functions and classes that can't run on the target, in files that can be loaded.

    def test(): from pkg.trt import Engine        the function imports a file that can't be loaded,
    def run(x): import cupy                       or a library without a form for the target,
    def run(x): return cupy.asarray(x)            or calls one that the file imports in a `try`
    class Codec: def __init__(self): self.build() the class compiles CUDA sources as it is made

Imports and calls in a `try` or a branch don't count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.expressions import called_name
from joymigrate.rewrite.guards import negative
from joymigrate.rewrite.import_failures import Lack, doubt_where, find_span, import_name
from joymigrate.rewrite.import_trees import Trees
from joymigrate.rewrite.kernel_callers import BRANCHES, FUNCTIONS, first_line, walk_surely
from joymigrate.rewrite.own_extensions import LOADS, SOURCE, speaks
from joymigrate.rewrite.third_party import parents
from joymigrate.rewrite.values.cells import find_names

IMPORTS = "`{name}` can't run: {reason}"
FOREIGN = "`{name}` can't run without `{package}`, which has no form for the target"
COMPILES = "`{name}` compiles CUDA sources"
SOURCES = re.compile(rf"{re.escape(SOURCE)}\b")  # not `.cuda`
INNER = re.compile(r"\n[ \t]+(?:from[ \t][^\n(]*\([^)]*\)|(?:from|import)[ \t](?:\\\n|[^\n])*)")
MAKING = ("__init__", "initialize", "setup")  # what makes an object ready, whoever calls it
INSIDE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Span = tuple[int, int, str]  # first and last line, and why


def doubt_unrunnable(
    findings: Iterable[Finding],
    trees: Trees,
    lacking: Mapping[str, Lack],
    bound: Collection[str],
    target: str,
) -> list[Finding]:
    """The findings; edits in what can't run on the target are unsafe.

    `lacking` are files that can't be loaded, `bound` libraries of the origin's.
    """
    found = list(findings)
    words = {import_name(path) for path in lacking} | {name.split(".")[0] for name in bound}
    spans: dict[str, list[Span]] = {}
    for path in {one.path for one in found if one.edits and one.tier is not Tier.REPORT}:
        text = trees.texts.get(path, "")
        if path in lacking or not text or speaks(text, target):
            continue
        here: list[Span] = []
        if not words.isdisjoint(re.findall(r"\w+", read_inner_imports(text))):
            here += find_importing(path, trees, lacking, bound)
        if SOURCES.search(text) and any(f"{word}(" in text for word in LOADS):
            here += find_compiling(trees.of(path))
        if here:
            spans[path] = [*here, *find_classes(trees.of(path), here)]
    return doubt_where(found, lambda one: find_span(spans.get(one.path, ()), one))


def read_inner_imports(text: str) -> str:
    """The imports of a text that stand inside of something: few of its files have one at all.

    All of a text with an import behind something else on its line.
    """
    if any(
        f"{sign}{word} " in text for sign in (": ", ":", "; ", ";") for word in ("import", "from")
    ):
        return text
    return "\n".join(INNER.findall(text))


def find_importing(
    path: str, trees: Trees, lacking: Mapping[str, Lack], bound: Collection[str]
) -> Iterator[Span]:
    """Functions of a file that import or call what can't be loaded, whatever happens."""
    tried = find_tried(path, trees, bound)
    for node in find_functions(trees.of(path)):
        names = list(trees.named(path, walk_own(node)))
        names += find_called(node, tried) if tried else ()
        other = next((each for each in trees.files(path, names) if each in lacking), None)
        why: str | None = None
        if other is not None:
            why = Text(IMPORTS, name=node.name, reason=lacking[other].tell(other))
        for name in names:
            listed = (each for each in parents(name) if each in bound)
            package = next(listed, None) if trees.tree.locate(path, name) is None else None
            if package is not None:
                why = why or Text(FOREIGN, name=node.name, package=package)
        if why is not None:
            yield first_line(node), node.end_lineno or node.lineno, why


def find_tried(path: str, trees: Trees, bound: Collection[str]) -> dict[str, str]:
    """Names by which a file knows libraries of the origin's that it tries to import, and those
    that tell whether they are there; each with its library.

    `try: import cupy as cp; HAVE = True`: the file can be loaded without it.
    """
    found: dict[str, str] = {}
    tree = trees.of(path)
    for tried in tree.body if tree is not None else ():
        if isinstance(tried, (ast.Try, ast.If)):
            imports: list[ast.stmt] = []
            names = find_names([tried], set(), imports)
            packages = [
                next(
                    (e for name in trees.named(path, [n]) for e in parents(name) if e in bound), ""
                )
                for n in imports
            ]
            if packages and all(packages):  # `except ImportError: import numpy as cp` is one more
                found |= dict.fromkeys(names, packages[0])
    return found


def find_called(
    node: ast.FunctionDef | ast.AsyncFunctionDef, tried: Mapping[str, str]
) -> Iterator[str]:
    """Of some libraries, those that a function calls, or raises without, whatever happens.

    None behind `if not HAVE: return other(x)`: the function serves those who lack it.
    """
    for statement in node.body:
        if isinstance(statement, ast.If):
            names = [name for name in map(name_of, ast.walk(statement.test)) if name in tried]
            if names and not isinstance(statement.body[-1], ast.Raise):
                return
            yield from (tried[name] for name in names if negative(statement.test))
        elif not isinstance(statement, (*INSIDE, *BRANCHES)):
            calls = (each for each in walk_surely(statement) if isinstance(each, ast.Call))
            roots = map(name_of, map(find_root, calls))
            yield from (tried[name] for name in roots if name in tried)


def find_root(call: ast.Call) -> ast.expr:
    """What a call's name starts with: `cp` of `cp.cuda.Stream(…)`."""
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return root


def name_of(node: ast.AST) -> str:
    """The name that a node is; empty for none."""
    return node.id if isinstance(node, ast.Name) else ""


def find_classes(tree: ast.Module | None, known: list[Span]) -> Iterator[Span]:
    """Classes whose objects can't be made: `__init__`, or what a server calls first, calls one of
    the methods in `known` whatever happens."""
    for node in tree.body if tree is not None else ():
        if not isinstance(node, ast.ClassDef):
            continue
        methods = {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}
        lines = {first_line(each): name for name, each in methods.items()}
        held = {lines[first]: why for first, _, why in known if first in lines}
        for _ in methods:
            callers = {
                name: held[other]
                for name, each in methods.items()
                for other in held
                if name not in held and calls_own(each, node.name, other)
            }
            held |= callers
            if not callers:
                break
        why = next((held[name] for name in MAKING if name in held), None)
        if why is not None:
            yield first_line(node), node.end_lineno or node.lineno, why


def walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a function that run whatever happens, without functions inside of it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and not isinstance(child, (*INSIDE, *BRANCHES)):
            yield child
            yield from walk_own(child)


def find_functions(tree: ast.Module | None) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file and the methods of its classes."""
    todo: list[ast.stmt] = list(tree.body) if tree is not None else []
    while todo:
        node = todo.pop()
        if isinstance(node, FUNCTIONS):
            yield node
        elif isinstance(node, (ast.ClassDef, ast.If, ast.Try)):
            todo += node.body


def find_compiling(tree: ast.Module | None) -> Iterator[Span]:
    """Functions that compile CUDA sources whatever happens, classes that do as they are made."""
    for node in tree.body if tree is not None else ():
        if isinstance(node, FUNCTIONS) and compiles(node):
            yield first_line(node), node.end_lineno or node.lineno, Text(COMPILES, name=node.name)
        elif isinstance(node, ast.ClassDef):
            methods = {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}
            building = {name for name, each in methods.items() if compiles(each)}
            made = methods.get("__init__")
            if made is not None and any(calls_own(made, node.name, name) for name in building):
                why = Text(COMPILES, name=node.name)
                yield first_line(node), node.end_lineno or node.lineno, why


def compiles(node: ast.AST) -> bool:
    """Whether a function calls `load("x", ["x.cu"])` whatever happens."""
    for call in walk_surely(node):
        if isinstance(call, ast.Call) and called_name(call) in LOADS:
            words = (each.value for each in ast.walk(call) if isinstance(each, ast.Constant))
            if any(isinstance(word, str) and word.endswith(SOURCE) for word in words):
                return True
    return False


def calls_own(node: ast.AST, owner: str, method: str) -> bool:
    """Whether a method of a class calls another one of it whatever happens."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == method
        and getattr(call.func.value, "id", "") in ("self", "cls", owner)
        for call in walk_surely(node)
    )
