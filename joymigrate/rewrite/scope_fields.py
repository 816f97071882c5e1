"""The fields of each kind of syntax node, read off Python's own grammar."""

from __future__ import annotations

import ast
import re

# Fields that hold code, by type, in order: name, and whether the field is a list. Contexts and
# operators, which all nodes share, hold none. The grammar stands in the types' own descriptions.
PRIMITIVES = ("identifier", "int", "string", "constant", "expr_context")


OPERATORS = ("boolop", "operator", "unaryop", "cmpop")


LEAVES = (ast.Name, ast.Constant)


FIELD = re.compile(r"(\w+)([*?]*) (\w+)")  # `expr* values`, `expr?* keys`


def fields_of(kind: type[ast.AST]) -> tuple[tuple[str, bool], ...]:
    """The fields of a type of node that hold nodes to visit."""
    written = (kind.__doc__ or "").partition("(")[2]
    return tuple(
        (name, "*" in many)
        for held, many, name in FIELD.findall(written)
        if held not in (*PRIMITIVES, *OPERATORS) and name in kind._fields
    )


FIELDS = {
    kind: fields_of(kind)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
