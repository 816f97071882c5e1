"""Code that runs kernels of an extension that the project builds without the origin as well.

    def raster(x): return _C.raster_cuda(x)          such an extension loads on the target, without
    class TestRaster: def test(self): raster(…)      its kernels: what calls one needs review

A call in a branch or a `try` is none: the other branch may serve the target.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from joymigrate.language import Text
from joymigrate.model import Finding
from joymigrate.rewrite.import_failures import doubt_where, find_span
from joymigrate.rewrite.import_trees import Trees
from joymigrate.rewrite.own_extensions import BUILDER, find_builder_names, parse_text, speaks

RUNS = "it runs `{name}`, a kernel that the project builds for the origin"
ROUNDS = 3  # functions that a kernel is reached through
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.IfExp, ast.Try, ast.Match)


def doubt_callers(
    findings: Iterable[Finding],
    trees: Trees,
    origin: str,
    target: str,
) -> list[Finding]:
    """The findings; edits of functions and tests that run such a kernel are unsafe.

    `origin` and `target` are devices.
    """
    found, texts = list(findings), trees.texts
    names = find_kernels(texts, trees, origin, target)
    if not names:
        return found
    word = re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, names)))})\b")
    spans = {
        path: [
            (first, last, Text(RUNS, name=name))
            for first, last, name in find_spans(texts[path], names)
        ]
        for path in {one.path for one in found if one.edits}
        if path in texts and word.search(texts[path])
    }
    return doubt_where(found, lambda one: find_span(spans.get(one.path, ()), one))


def find_kernels(texts: Mapping[str, str], trees: Trees, origin: str, target: str) -> set[str]:
    """Names of functions and classes that run a kernel of the project's extensions as they are."""
    own = (text for text in texts.values() if BUILDER in text and not speaks(text, target))
    extensions = {
        name for text in own if (tree := parse_text(text)) for name in find_builder_names(tree)
    }
    names: set[str] = set()
    homes: set[str] = set()
    for path, text in texts.items() if extensions else ():
        if not any(name.rpartition(".")[2] in text for name in extensions):
            continue
        imported = {name for name in trees.imports(path) if name in extensions}
        tree = trees.of(path) if imported else None
        if tree is None:
            continue
        called = {name.rpartition(".")[2] for name in imported}
        defined = [each for each in tree.body if isinstance(each, (*FUNCTIONS, ast.ClassDef))]
        here = {each.name for each in defined if any(find_called(each, called, origin))}
        for _ in range(ROUNDS):
            here |= {each.name for each in defined if any(find_calls(each, here))}
        names |= here
        homes |= {path} if here else set()
    for _ in range(ROUNDS if names else 0):
        called_by = {each: path for path in texts for each in find_callers(path, names, trees)}
        if not called_by.keys() - names:
            break
        names |= called_by.keys()
        homes.update(called_by.values())
    if not names:
        return names
    defines = re.compile(rf"^(?:def|class)[ ]({'|'.join(map(re.escape, names))})\b", re.M)
    others = (text for path, text in texts.items() if path not in homes)
    return names.difference(*(defines.findall(text) for text in others))


def find_callers(path: str, names: set[str], trees: Trees) -> Iterator[str]:
    """Functions of a file, no test, that call one of some functions whatever happens."""
    if "test" in path or not any(name in trees.texts[path] for name in names):
        return
    tree = trees.of(path)
    for each in tree.body if tree is not None else ():
        if isinstance(each, FUNCTIONS) and any(find_calls(each, names)):
            yield each.name


def find_called(node: ast.AST, called: set[str], origin: str) -> Iterator[str]:
    """Kernels that a definition calls whatever happens: `_C.render.raster_cuda(…)`."""
    for call in walk_surely(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            root: ast.AST = call.func
            while isinstance(root, ast.Attribute):
                root = root.value
            if getattr(root, "id", "") in called and origin in call.func.attr:
                yield call.func.attr


def find_calls(node: ast.AST, names: set[str]) -> Iterator[str]:
    """Of some functions and classes, those that a definition calls whatever happens."""
    for call in walk_surely(node):
        if not isinstance(call, ast.Call):
            continue
        func = call.func
        name = getattr(func, "attr", getattr(func, "id", ""))
        if name == "apply" and isinstance(func, ast.Attribute):
            name = getattr(func.value, "attr", getattr(func.value, "id", ""))
        if name in names:
            yield name


def walk_surely(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that stand in no branch and no `try`; the tests of branches do count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, BRANCHES):
            continue
        yield child
        yield from walk_surely(child)


def find_spans(text: str, names: set[str]) -> Iterator[tuple[int, int, str]]:
    """First and last line of what runs one of the kernels, with its name.

    Functions, classes of tests in which every test does, and the statements of a program.
    """
    tree = parse_text(text)
    if tree is None:
        return
    loose: str | None = None
    for node in tree.body:
        if isinstance(node, FUNCTIONS):
            yield from find_spans_in([node], names)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, FUNCTIONS)]
            tests = [each for each in methods if each.name.startswith("test")]
            run = [next(find_calls(each, names), None) for each in tests]
            if tests and all(run):
                yield first_line(node), node.end_lineno or node.lineno, str(run[0])
            else:
                yield from find_spans_in(methods, names)
        else:
            loose = loose or next(find_calls(node, names), None)
    for node in tree.body if loose is not None else ():
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.lineno, node.end_lineno or node.lineno, str(loose)


def find_spans_in(
    functions: Iterable[ast.FunctionDef | ast.AsyncFunctionDef], names: set[str]
) -> Iterator[tuple[int, int, str]]:
    """The same for functions, each by itself."""
    for node in functions:
        name = next(find_calls(node, names), None)
        if name is not None:
            yield first_line(node), node.end_lineno or node.lineno, name


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """The first line of a definition with its decorators."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])
