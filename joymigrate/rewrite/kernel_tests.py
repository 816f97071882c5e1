"""Tests that are skipped without the origin's device, because they run its kernels.

    if not torch.cuda.is_available(): pytest.skip("the warp back end needs CUDA")
    @pytest.mark.skipif(not torch.cuda.is_available(), reason=…)   before a test that imports one

Such a condition stays: on the target the test would run, and fail.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from joymigrate.rewrite.expressions import called_name
from joymigrate.rewrite.guards import ends_block, negative
from joymigrate.rewrite.kernel_names import SHORT, find_imported, is_bound, library_words

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

SKIPS = ("skip", "skipTest", "SkipTest", "skipif", "skipIf", "skipUnless")
NEEDS = ("importorskip", "requires_module")
PREPARES = ("setUp", "setUpClass", "setup_method", "setup_class", "asyncSetUp")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


def find_skipped(module: Module, node: ast.AST) -> str | None:
    """The library of kernels that a test uses which a condition skips; else None."""
    skip = skip_around(node)
    if skip is None:
        return None
    words = library_words(module)
    for each in ast.walk(skip):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            named = words.search(each.value)
            if named is not None and has_library(module, named[1]):
                return named[1]
    used = (name for scope in find_scopes(module, skip) for name in find_used(module, scope))
    return next(used, None)


def has_library(module: Module, name: str) -> bool:
    """Whether a word is a library: an everyday word is one where the project imports it."""
    name = name.lower()
    return name not in SHORT or any(
        module.project.speaks_of(f"{word} {name}") for word in ("import", "from")
    )


def skips_with_device(question: ast.AST) -> bool:
    """Whether a test is skipped where the device is: `skipIf(torch.cuda.is_available(), …)`."""
    at, parent = question, getattr(question, "parent", None)
    while isinstance(parent, ast.expr) and called_name(parent) not in ("skipIf", "skipif"):
        at, parent = parent, getattr(parent, "parent", None)
    return isinstance(parent, ast.Call) and at in parent.args[:1] and not negative(at)


def find_scopes(module: Module, skip: ast.AST) -> Iterator[ast.AST]:
    """What a skip is for: the test, the class whose `setUp` it stands in, the whole file.

    `needs_card = pytest.mark.skipif(…)` is for what it decorates, where it decorates something.
    """
    statement: ast.AST | None = skip
    while statement is not None and not isinstance(statement, (ast.stmt, *SCOPES)):
        statement = getattr(statement, "parent", None)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        mark = statement.targets[0].id
        nodes = module.names.nodes
        decorated = [
            each
            for kind in SCOPES[:-1]
            for each in nodes[kind]
            if any(getattr(one, "id", None) == mark for one in each.decorator_list)
        ]
        if decorated:
            yield from decorated
            return
    scope = statement
    while scope is not None and not isinstance(scope, SCOPES):
        scope = getattr(scope, "parent", None)
    above = getattr(scope, "parent", None)
    if getattr(scope, "name", "") in PREPARES and isinstance(above, ast.ClassDef):
        scope = above
    if scope is not None:
        yield scope


def skip_around(node: ast.AST) -> ast.AST | None:
    """The statement, or the decorator, that skips a test by a condition."""
    at: ast.AST | None = node
    while isinstance(at, (ast.expr, ast.keyword)):
        above = getattr(at, "parent", None)
        name = called_name(at)
        if name in SKIPS and at is not node:
            return at
        at = above
    if isinstance(at, ast.If) and ends_block(at.body[-1]):
        last = at.body[-1]
        call = last.value if isinstance(last, ast.Expr) else getattr(last, "exc", None)
        return at if called_name(call) in SKIPS else None
    return None


def find_used(module: Module, scope: ast.AST) -> Iterator[str]:
    """Libraries of kernels that a function, a class or the top level of a file uses."""
    if isinstance(scope, ast.Module):
        parts: list[ast.AST] = [
            each
            for each in ast.walk(scope)
            if isinstance(each, (ast.Import, ast.ImportFrom)) and top(each)
        ]
    else:
        parts = list(ast.walk(scope))
    words = library_words(module)
    for each in parts:
        if isinstance(each, (ast.Import, ast.ImportFrom)):
            yield from find_imported(module, each)
        elif isinstance(each, ast.Call) and called_name(each) in NEEDS:
            first = each.args[0] if each.args else None
            if isinstance(first, ast.Constant) and words.fullmatch(str(first.value)):
                yield str(first.value)
        elif isinstance(each, (ast.Name, ast.Attribute)) and isinstance(each.ctx, ast.Load):
            dotted = module.names.dotted(each)
            if dotted is not None and "." in dotted and is_bound(module, dotted):
                yield dotted


def top(node: ast.AST) -> bool:
    """Whether a statement stands outside of functions."""
    at = getattr(node, "parent", None)
    while at is not None and not isinstance(at, SCOPES):
        at = getattr(at, "parent", None)
    return isinstance(at, ast.Module)
