"""What codemods about fused operators share: the chip's calls, exact forms, device checks.

A fused call is written only beside the original, behind a check of the device, and only for forms
that can mean nothing else. On any other device the program computes what it did.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.rewrite.module import Module

FUNCTIONAL = "torch.nn.functional"
ROUNDING = "equal up to rounding, which differs on the chip"


@dataclass(frozen=True, slots=True)
class Fusion:
    """A place that the chip's call can take, and when."""

    call: str
    checks: tuple[str, ...]
    reason: str = ROUNDING
    target: str | None = None  # of statements: the name that gets the result; None: returned


Place = tuple[tuple[int, int], Fusion]  # from where to where in the text


def knows_chip(module: Module, node: ast.AST) -> bool:
    """Whether the code around a site knows the chip already: nothing is to be added there."""
    if module.guarded(node) is not None:
        return True
    function = module.names.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    words = module.vocabulary.target_words
    return function is not None and words is not None and bool(words.search(module.text(function)))


def on_chip(module: Module, tensor: str) -> str:
    """The check that a tensor is on the chip."""
    return f'{tensor}.device.type == "{module.context.chip.device}"'


def simple(node: ast.AST) -> bool:
    """Whether an expression may be written twice: a name, or an attribute of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def is_call(module: Module, node: ast.AST, *names: str) -> bool:
    """Whether a node calls one of some functions, by full dotted name."""
    return isinstance(node, ast.Call) and module.names.dotted(node.func) in names


def method(node: ast.AST, name: str) -> ast.expr | None:
    """The receiver of a call of the method `name`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr == name else None
    return None


def factors(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Both orders of a product's factors."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield node.left, node.right
        yield node.right, node.left


def same(first: ast.AST, second: ast.AST) -> bool:
    """Whether two expressions read the same."""
    return ast.dump(first) == ast.dump(second)


def number(node: ast.AST | None, value: int) -> bool:
    """Whether a node is this number, written with or without a sign."""
    try:
        return node is not None and ast.literal_eval(node) == value
    except (ValueError, TypeError, SyntaxError):
        return False


def argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """An argument by keyword or position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if len(call.args) > position else None
