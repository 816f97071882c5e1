"""Conditions that leave where a value is not on the origin's device, and what puts it there.

    x = x.cuda()                    both move, or both stay: with the first alone moved, the
    if not x.is_cuda: return None   second leaves on the target

Followed inside one scope, and for attributes of `self` inside one class; not through parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from joymigrate.rewrite.expressions import around, leaving
from joymigrate.rewrite.guards import negative
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.scopes import SCOPES

PLACING = ("to", "requires_grad_")


def refusals(module: Module) -> Iterator[tuple[ast.expr, list[ast.stmt]]]:
    """Each condition that leaves for other devices, with the statements that place its values."""
    for test in conditions(module):
        for asked in find_answers(module, test):
            places = [each for root in roots(module, asked) for each in placing(module, root)]
            if places:
                yield asked, places


def conditions(module: Module) -> Iterator[ast.expr]:
    """Conditions under which code leaves, or goes on, for a device."""
    asking = questions(module)
    names = {
        each.id
        for top in asking
        for target in targets_of(getattr(top, "parent", None))
        for each in parts(target)
        if isinstance(each, ast.Name)
    }

    read = [each for each in module.names.nodes[ast.Name] if each.id in names] if names else []
    reached = around(read)

    def asks(test: ast.expr) -> bool:
        return test in asking or test in reached

    for node in module.names.nodes[ast.If] if asking else ():
        if not asks(node.test):
            continue
        denied = negative(node.test) and leaving(node)
        last = node.orelse[-1] if node.orelse else None
        other = isinstance(last, (ast.Raise, ast.Return)) and not negative(node.test)
        if denied or other:
            yield node.test
    for node in module.names.nodes[ast.Assert] if asking else ():
        if asks(node.test) and not negative(node.test):
            yield node.test


def questions(module: Module) -> set[ast.AST]:
    """Whole expressions that may ask for a value's device: few files have one."""
    flag, device = module.context.origin.tensor["is_cuda"], module.vocabulary.device
    if flag in module.source.text:
        asking = [each for each in module.names.nodes[ast.Attribute] if each.attr == flag]
    else:
        asking = []
    found: set[ast.AST] = set()
    for node in (*asking, *(each for each, value in module.spoken if value.startswith(device))):
        top: ast.AST = node
        while not isinstance(getattr(top, "parent", None), (ast.stmt, ast.Module, type(None))):
            top = top.parent  # type: ignore[attr-defined]
        found.add(top)
    return found


def find_answers(module: Module, test: ast.expr) -> Iterator[ast.expr]:
    """The condition itself, and the answers that its variables hold."""
    yield test
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            found = module.names.lookup(node.id, node)
            if found is not None and len(found[1]) == 1 and found[1][0].kind == "assign":
                value = found[1][0].value
                if isinstance(value, (ast.Compare, ast.Attribute, ast.BoolOp, ast.UnaryOp)):
                    yield value


def roots(module: Module, test: ast.expr) -> Iterator[ast.expr]:
    """The variables whose device a condition asks for: `x` of `x.is_cuda`, `x.device == "cuda"`."""
    flag, device = module.context.origin.tensor["is_cuda"], module.vocabulary.device
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and node.attr == flag:
            yield from root(node.value)
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            texts = [getattr(part, "value", None) for part in parts]
            if any(isinstance(text, str) and text.startswith(device) for text in texts):
                yield from (each for part in parts for each in root(part))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "startswith":
            text = getattr(node.args[0], "value", None) if node.args else None
            if isinstance(text, str) and text.startswith(device):
                yield from root(node.func.value)  # type: ignore[attr-defined]


def root(node: ast.expr) -> Iterator[ast.expr]:
    """The variable or attribute of `self` that an expression starts from."""
    while True:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node
                return
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            function = isinstance(node.func, ast.Name)
            if function and not node.args:
                return
            node = node.args[0] if function else node.func
        else:
            break
    if isinstance(node, ast.Name):
        yield node


def placing(module: Module, variable: ast.expr) -> Iterator[ast.stmt]:
    """Statements that give a variable its value, or move what it holds."""
    nodes = module.names.nodes
    for node in (*nodes[ast.Assign], *nodes[ast.AnnAssign]):
        if any(same(module, e, variable) for t in targets_of(node) for e in parts(t)):
            yield node
    method = module.context.origin.tensor["cuda"]
    for node in nodes[ast.Expr]:
        func: Any = node.value.func if isinstance(node.value, ast.Call) else None
        places = isinstance(func, ast.Attribute) and func.attr in (method, *PLACING)
        if places and any(same(module, each, variable) for each in root(func.value)):
            yield node


def targets_of(node: ast.AST | None) -> list[ast.expr]:
    """What an assignment writes."""
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    return node.targets if isinstance(node, ast.Assign) else []


def parts(target: ast.expr) -> list[ast.expr]:
    """What an assignment gives values to."""
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def same(module: Module, one: ast.expr, other: ast.expr) -> bool:
    """Whether two places name one variable: of one scope, or of `self` in one class."""
    if isinstance(one, ast.Name) and isinstance(other, ast.Name):
        kinds: tuple[type, ...] = SCOPES
        alike = one.id == other.id
    elif isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute):
        mine = getattr(one.value, "id", "") == "self" == getattr(other.value, "id", "")
        kinds, alike = (ast.ClassDef,), mine and one.attr == other.attr
    else:
        return False
    enclosing = module.names.enclosing
    return alike and enclosing(one, kinds) is enclosing(other, kinds)
