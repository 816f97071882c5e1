"""The greatest value that a launch's size can have, followed through the code that calls it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from joymigrate.profile.port.dotted import dotted

DEEP = 4  # calls and assignments that are followed


@dataclass(slots=True)
class Scope:
    """A file's functions and constants, and who calls what."""

    tree: ast.Module
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    calls: dict[str, list[tuple[ast.Call, ast.FunctionDef | None]]] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.constants[dotted(node.targets[0])] = node.value
        self.walk(self.tree, None)

    def walk(self, node: ast.AST, inside: ast.FunctionDef | None) -> None:
        """Note every call with the function that it stands in."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                self.functions.setdefault(child.name, child)
                self.walk(child, child)
                continue
            if isinstance(child, ast.Call):
                name = dotted(child.func).rpartition(".")[2]
                self.calls.setdefault(name, []).append((child, inside))
            self.walk(child, inside)

    def function_of(self, call: ast.Call) -> ast.FunctionDef | None:
        """The function that a launch stands in."""
        for function in self.functions.values():
            around = function.lineno <= call.lineno <= (function.end_lineno or 0)
            if around and any(node is call for node in ast.walk(function)):
                return function
        return None


def greatest(
    node: ast.expr | None, scope: Scope, function: ast.FunctionDef | None, deep: int = DEEP
) -> int | None:
    """An upper bound of a whole number; None where the source does not say one."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.IfExp):
        both = [greatest(one, scope, function, deep) for one in (node.body, node.orelse)]
        return max(one for one in both if one is not None) if None not in both else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Pow, ast.LShift)):
        left, right = (greatest(one, scope, function, deep) for one in (node.left, node.right))
        if left is None or right is None or right > 1 << 20:
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        return (
            left**right if isinstance(node.op, ast.Pow) and right < 64 else left << min(right, 64)
        )
    if isinstance(node, ast.Call):
        return called(node, scope, function, deep)
    if isinstance(node, ast.Name) and deep:
        return of_name(node.id, scope, function, deep - 1)
    return None


def called(node: ast.Call, scope: Scope, function: ast.FunctionDef | None, deep: int) -> int | None:
    """min, max and next_power_of_2 of what is known."""
    name = dotted(node.func).rpartition(".")[2]
    found = [greatest(one, scope, function, deep) for one in node.args]
    known = [one for one in found if one is not None]
    if name == "min" and known:
        return min(known)
    if not known or len(known) < len(found):
        return None
    if name == "max":
        return max(known)
    if name == "next_power_of_2":
        return 1 << max(0, known[0] - 1).bit_length()
    return known[0] if name in ("int", "constexpr") else None


def of_name(name: str, scope: Scope, function: ast.FunctionDef | None, deep: int) -> int | None:
    """What a name can hold: every assignment, or every argument that callers give."""
    if function is None:
        value = scope.constants.get(name)
        return greatest(value, scope, None, deep) if value is not None else None
    values = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(dotted(target) == name for target in node.targets)
    ]
    if values:
        bounds = [greatest(one, scope, function, deep) for one in values]
        return None if None in bounds else max(one for one in bounds if one is not None)
    parameters = [a.arg for a in function.args.args]
    if name not in parameters:
        return of_name(name, scope, None, deep)
    given = list(handed(name, parameters, function, scope))
    bounds = [greatest(value, scope, inside, deep) for value, inside in given]
    return None if not bounds or None in bounds else max(one for one in bounds if one is not None)


def handed(
    name: str, parameters: list[str], function: ast.FunctionDef, scope: Scope
) -> list[tuple[ast.expr | None, ast.FunctionDef | None]]:
    """The values that callers of a function in the same file give a parameter, or its default."""
    found: list[tuple[ast.expr | None, ast.FunctionDef | None]] = []
    defaults = dict(zip(reversed(parameters), reversed(function.args.defaults), strict=False))
    place = parameters.index(name)
    for call, inside in scope.calls.get(function.name, ()):
        value = next((k.value for k in call.keywords if k.arg == name), None)
        if value is None and len(call.args) > place:
            value = call.args[place]
        found.append((value if value is not None else defaults.get(name), inside))
    return found
