"""Whether a value is an array of the host or a table and no tensor, by what the code around shows.

Types are not inferred. A value counts as an array where it comes from a call of numpy, pandas or
another library of arrays, goes into one, is annotated as one, is compared with a text, is asked
for what only such values have, or where its function speaks of numpy and never of torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TORCH = ("torch", "torchvision", "transformers")
# Libraries whose functions answer arrays of the host or tables.
HOST = frozenset(("numpy", "pandas", "scipy", "sklearn", "skimage", "librosa", "anndata", "xarray"))
# Methods and attributes that only tensors have.
TENSOR_ONLY = frozenset(
    ("cuda", "to", "detach", "cpu", "unsqueeze", "backward", "requires_grad", "permute")
)
TENSOR_PARTS = frozenset(("data", "grad", "real", "imag", "T", "mT", "H", "mH", "shape", "ndim"))
# Methods and attributes that tables and arrays have and no tensor has; `numpy()` answers an array.
HOST_ONLY = frozenset(
    ("astype", "isnull", "isna", "notna", "loc", "iloc", "obs_names", "var_names", "obsm",
     "columns", "str", "isin", "to_numpy", "numpy")
)  # fmt: skip


def is_array(module: Module, node: ast.expr) -> bool:
    """Whether the value of `node` is seen to be an array of the host or a table."""
    if not any(name in module.source.text for name in HOST):
        return False
    if is_host(module, node) or goes_into_numpy(module, node):
        return True
    function = module.names.enclosing(node, FUNCTIONS) or module.tree
    named = node.value if isinstance(node, ast.Subscript) else None
    if isinstance(named, ast.Name) and has_columns(function, named.id):
        return True
    kinds = [known_array(module, function, name) for name in roots(node)]
    return (True in kinds and False not in kinds) or only_numpy(module, function)


def walk_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, or in a module outside of its functions and classes."""
    outer, left = isinstance(scope, ast.Module), [scope]
    for each in left:  # grows
        if not (outer and isinstance(each, (*FUNCTIONS, ast.ClassDef))):
            yield each
            left.extend(ast.iter_child_nodes(each))


def has_columns(function: ast.AST, name: str) -> bool:
    """Whether a variable is asked for a column: `table["fold"]`, `table[table.fold != 1]`."""
    for each in walk_scope(function):
        if not isinstance(each, ast.Subscript) or getattr(each.value, "id", "") != name:
            continue
        index = each.slice
        if is_text(index):
            return True
        left = index.left if isinstance(index, ast.Compare) else None
        if isinstance(left, ast.Attribute) and getattr(left.value, "id", "") == name:
            return left.attr not in TENSOR_PARTS
    return False


def roots(node: ast.expr) -> set[str]:
    """The variables that an expression takes its values from: `x` and `m` of `x[m]`, `x[m > 0]`.

    What a method of another value or a function answers is no variable's own kind.
    """
    match node:
        case ast.Name():
            return {node.id}
        case ast.Subscript():
            return roots(node.value) | roots(node.slice)
        case ast.Compare():
            return roots(node.left)
        case ast.UnaryOp():
            return roots(node.operand)
    return set()


def root(node: ast.expr) -> str | None:
    """The variable at the beginning of a chain of subscripts."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_host(module: Module, node: ast.AST) -> bool:
    """Whether an expression holds a call of a library of arrays, or what only its values have."""
    return any(
        called_numpy(module, each)
        or (isinstance(each, ast.Attribute) and each.attr in HOST_ONLY)
        or (isinstance(each, ast.Compare) and any(map(is_text, each.comparators)))
        for each in ast.walk(node)
    )


def is_text(node: ast.expr) -> bool:
    """A text, with which no tensor is compared element by element."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def library(module: Module, node: ast.expr) -> str:
    """The top package of an expression's dotted name, empty for anything else."""
    return (module.names.dotted(node) or "").partition(".")[0]


def goes_into_numpy(module: Module, node: ast.expr) -> bool:
    """`np.mean(x[mask])`."""
    return called_numpy(module, getattr(node, "parent", None) or node)


def known_array(module: Module, function: ast.AST, name: str) -> bool | None:
    """Whether a variable of a function is an array; None where nothing shows what it is.

    It is one where it is assigned from an array, annotated so, or handed to numpy, and none where
    one of torch's functions makes it anywhere in the function.
    """
    seen = None
    for each in walk_scope(function):
        if isinstance(each, ast.arg) and each.arg == name and each.annotation is not None:
            return any(word in ast.unparse(each.annotation) for word in ("ndarray", "DataFrame"))
        if isinstance(each, ast.Assign) and name in find_assigned(each):
            if of_torch(module, each.value):
                return False
            seen = seen or is_host(module, each.value) or None
        elif isinstance(each, ast.Call) and called_numpy(module, each):
            seen = seen or any(isinstance(a, ast.Name) and a.id == name for a in each.args) or None
    return seen


def find_assigned(statement: ast.Assign) -> set[str | None]:
    """The variables that a statement sets, or sets parts of: `a, x[0] = …` gives a and x."""
    each = [t for target in statement.targets for t in getattr(target, "elts", [target])]
    return {root(target) for target in each}


def of_torch(module: Module, node: ast.expr) -> bool:
    """Whether an expression's last call is one of torch's, or of a method only tensors have."""
    if not isinstance(node, ast.Call):
        return False
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return library(module, node.func) in TORCH or method in TENSOR_ONLY - {"cpu", "detach"}


def called_numpy(module: Module, node: ast.AST) -> bool:
    """Whether an expression is a call of a function of numpy's or another library of arrays."""
    return isinstance(node, ast.Call) and library(module, node.func) in HOST


def only_numpy(module: Module, function: ast.AST) -> bool:
    """Whether a function speaks of numpy and never of torch or what only tensors have."""
    numpy = False
    for each in ast.walk(function):
        if isinstance(each, ast.Name):
            top = library(module, each)
            numpy = numpy or top in HOST
            if top in TORCH:
                return False
        elif isinstance(each, ast.Attribute) and each.attr in TENSOR_ONLY:
            return False
    return numpy
