"""Whether a value is a numpy array and no tensor, by what the code around it shows.

Types are not inferred. A value counts as an array where it comes from a call of numpy, goes into
one, is annotated as one, or where its function speaks of numpy and never of torch.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TORCH = ("torch", "torchvision", "transformers")
# Methods and attributes that only tensors have.
TENSOR_ONLY = frozenset(
    ("cuda", "to", "detach", "cpu", "unsqueeze", "backward", "requires_grad", "permute")
)


def is_array(module: Module, node: ast.expr) -> bool:
    """Whether the value of `node` is seen to be a numpy array."""
    if "numpy" not in module.source.text:
        return False
    if of_numpy(module, node) or goes_into_numpy(module, node):
        return True
    name = root(node)
    function = module.names.enclosing(node, FUNCTIONS)
    if name is not None and function is not None and known_array(module, function, name):
        return True
    return function is not None and only_numpy(module, function)


def root(node: ast.expr) -> str | None:
    """The variable at the beginning of a chain of subscripts."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def of_numpy(module: Module, node: ast.AST) -> bool:
    """Whether an expression is, or holds, a call of numpy."""
    return any(called_numpy(module, each) for each in ast.walk(node))


def library(module: Module, node: ast.expr) -> str:
    """The top package of an expression's dotted name, empty for anything else."""
    return (module.names.dotted(node) or "").partition(".")[0]


def goes_into_numpy(module: Module, node: ast.expr) -> bool:
    """`np.mean(x[mask])`."""
    return called_numpy(module, getattr(node, "parent", None) or node)


def known_array(module: Module, function: ast.AST, name: str) -> bool:
    """Whether a variable of a function is assigned from numpy, annotated so, or handed to numpy."""
    for each in ast.walk(function):
        if isinstance(each, ast.arg) and each.arg == name and each.annotation is not None:
            return "ndarray" in ast.unparse(each.annotation)
        assigned = {root(t) for t in each.targets} if isinstance(each, ast.Assign) else set()
        if name in assigned and called_numpy(module, each.value):  # type: ignore[attr-defined]
            return True
        if isinstance(each, ast.Call) and called_numpy(module, each):
            given = {a.id for a in each.args if isinstance(a, ast.Name)}
            if name in given:
                return True
    return False


def called_numpy(module: Module, node: ast.AST) -> bool:
    """Whether an expression is a call of a function of numpy's."""
    return isinstance(node, ast.Call) and library(module, node.func) == "numpy"


def only_numpy(module: Module, function: ast.AST) -> bool:
    """Whether a function speaks of numpy and never of torch or what only tensors have."""
    numpy = False
    for each in ast.walk(function):
        if isinstance(each, ast.Name):
            top = library(module, each)
            numpy = numpy or top == "numpy"
            if top in TORCH:
                return False
        elif isinstance(each, ast.Attribute) and each.attr in TENSOR_ONLY:
            return False
    return numpy
