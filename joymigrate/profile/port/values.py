"""The greatest value that a launch's size can have, followed through the code that calls it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from joymigrate.profile.port.dotted_names import dotted_name
from joymigrate.profile.port.project import Files

LARGEST = 1 << 64  # no size is larger; numbers that grow without end are not followed
DEEP = 6  # calls and assignments that are followed
ELEMENT_BYTES = 2  # of `x.element_size()`: the shortest floating point type that kernels are for


@dataclass(slots=True)
class FileScope:
    """A file's functions and constants, and who calls what."""

    tree: ast.Module
    path: Path = Path("own.py")
    files: Files = field(default_factory=lambda: Files([]))
    functions: list[ast.FunctionDef] = field(default_factory=list)
    classes: dict[int, ast.ClassDef] = field(default_factory=dict)  # of a method, by its identity
    calls: dict[str, list[tuple[ast.Call, ast.FunctionDef | None]]] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.constants[dotted_name(node.targets[0])] = node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self.constants[dotted_name(node.target)] = node.value
        self.walk(self.tree, None, None)

    def walk(
        self, node: ast.AST, inside: ast.FunctionDef | None, owner: ast.ClassDef | None
    ) -> None:
        """Note every call with the function that it stands in."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                self.functions.append(child)
                if owner is not None:
                    self.classes[id(child)] = owner
                self.walk(child, child, owner)
                continue
            if isinstance(child, ast.Call):
                name = dotted_name(child.func).rpartition(".")[2]
                self.calls.setdefault(name, []).append((child, inside))
            self.walk(child, inside, child if isinstance(child, ast.ClassDef) else owner)

    def function_of(self, call: ast.Call) -> ast.FunctionDef | None:
        """The innermost function that a launch stands in."""
        around = [
            function for function in self.functions
            if function.lineno <= call.lineno <= (function.end_lineno or 0)
            and any(node is call for node in ast.walk(function))
        ]  # fmt: skip
        return max(around, key=lambda one: one.lineno) if around else None

    def chosen(self, launch: ast.Call) -> list[str]:
        """The kernels that `chosen[grid](…)` can mean: its own name, or those it was given."""
        assert isinstance(launch.func, ast.Subscript)
        whole = dotted_name(launch.func.value)
        name = whole.rpartition(".")[2]
        inside = self.function_of(launch)
        if inside is None or "." in whole:
            return [name, whole.partition(".")[0]] if whole.endswith(".fn") else [name]
        values = [value for value, _ in find_assigned(name, inside)]
        named = [n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name)]
        return [name, *named]


def greatest(
    node: ast.expr | None, scope: FileScope, function: ast.FunctionDef | None, deep: int = DEEP
) -> int | None:
    """An upper bound of a whole number; None where the source does not say one."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.IfExp):
        both = [greatest(one, scope, function, deep) for one in (node.body, node.orelse)]
        return max(one for one in both if one is not None) if None not in both else None
    if isinstance(node, ast.BinOp):
        return combine_bounds(node, scope, function, deep)
    if isinstance(node, ast.Call):
        return bound_call(node, scope, function, deep)
    if isinstance(node, ast.Name) and deep:
        return of_name(node.id, scope, function, deep - 1)
    if isinstance(node, ast.Attribute) and deep and function is not None:
        return of_attribute(dotted_name(node), scope, function, deep - 1)
    return None


def combine_bounds(
    node: ast.BinOp, scope: FileScope, function: ast.FunctionDef | None, deep: int
) -> int | None:
    """Products, powers, shifts and quotients of what is known."""
    left = greatest(node.left, scope, function, deep)
    if isinstance(node.op, ast.FloorDiv) and left is not None:
        by = node.right
        if isinstance(by, ast.Call) and dotted_name(by.func).endswith(".element_size"):
            return left // ELEMENT_BYTES
        if isinstance(by, ast.Constant) and type(by.value) is int and by.value > 0:
            return left // by.value
        return None
    right = greatest(node.right, scope, function, deep)
    if left is None or right is None or not 0 <= right <= 1 << 20 or abs(left) > LARGEST:
        return None
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Pow):
        return left**right if right < 64 else None
    return left << min(right, 64) if isinstance(node.op, ast.LShift) else None


def bound_call(
    node: ast.Call, scope: FileScope, function: ast.FunctionDef | None, deep: int
) -> int | None:
    """min, max and next_power_of_2 of what is known; what a function of the project returns."""
    name = dotted_name(node.func).rpartition(".")[2]
    found = [greatest(one, scope, function, deep) for one in node.args]
    known = [one for one in found if one is not None]
    if name == "min" and known:
        return min(known)
    if known and len(known) == len(found):
        if name == "max":
            return max(known)
        if name == "next_power_of_2":
            return 1 << max(0, known[0] - 1).bit_length()
        if name in ("int", "constexpr"):
            return known[0]
    return bound_return(node, None, scope, deep)


def bound_return(node: ast.Call, place: int | None, scope: FileScope, deep: int) -> int | None:
    """The greatest value that a function of the project returns, of a tuple at a place."""
    name = dotted_name(node.func)
    if not name or not deep:
        return None
    for found in scope.files.places(name, scope.path, scope.tree):
        if not isinstance(found.node, ast.FunctionDef):
            continue
        inner = (
            scope if found.tree is scope.tree else FileScope(found.tree, found.path, scope.files)
        )
        values = [n.value for n in ast.walk(found.node) if isinstance(n, ast.Return)]
        picked: list[ast.expr | None] = []
        for value in values:
            if place is None:
                picked.append(value)
            elif isinstance(value, ast.Tuple) and place < len(value.elts):
                picked.append(value.elts[place])
            else:
                return None
        bounds = [greatest(one, inner, found.node, deep - 1) for one in picked]
        known = [one for one in bounds if one is not None]
        return max(known) if known and len(known) == len(bounds) else None
    return None


def find_assigned(name: str, within: ast.AST) -> Iterator[tuple[ast.expr, int | None]]:
    """Values that a name is given, with the place where a tuple is unpacked."""
    for node in ast.walk(within):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            if dotted_name(node.target) == name:
                yield node.value, None
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if dotted_name(target) == name:
                    yield node.value, None
                elif isinstance(target, ast.Tuple):
                    for place, part in enumerate(target.elts):
                        if dotted_name(part) == name:
                            yield node.value, place


def of_name(name: str, scope: FileScope, function: ast.FunctionDef | None, deep: int) -> int | None:
    """What a name can hold: every assignment, or every argument that callers give."""
    if function is None:
        return of_constant(name, scope, deep)
    limit = find_limit(name, scope, function, deep)
    values = list(find_assigned(name, function))
    if values:
        bounds = [bound_unpacked(one, place, scope, function, deep) for one, place in values]
        return smallest(limit, highest(bounds))
    parameters = [a.arg for a in function.args.args]
    if name not in parameters:
        return of_constant(name, scope, deep)
    given = list(find_arguments(name, parameters, function, scope))
    return smallest(limit, highest([greatest(v, scope, inside, deep) for v, inside in given]))


def of_constant(name: str, scope: FileScope, deep: int) -> int | None:
    """A constant of the file, or of another one of the project."""
    value = scope.constants.get(name)
    if value is not None:
        return greatest(value, scope, None, deep)
    for found in scope.files.places(name, scope.path, scope.tree) if deep else ():
        if isinstance(found.node, (ast.Assign, ast.AnnAssign)) and found.tree is not scope.tree:
            inner = FileScope(found.tree, found.path, scope.files)
            return greatest(found.node.value, inner, None, deep - 1)
    return None


def of_attribute(
    name: str, scope: FileScope, function: ast.FunctionDef, deep: int
) -> int | None:  # fmt: skip
    """What methods of the same class put into an attribute, such as `ctx.BLOCK`."""
    owner = scope.classes.get(id(function))
    if owner is None:
        return None
    bounds = []
    for method in (one for one in owner.body if isinstance(one, ast.FunctionDef)):
        for value, place in find_assigned(name, method):
            bounds.append(bound_unpacked(value, place, scope, method, deep))
    return highest(bounds)


def bound_unpacked(
    value: ast.expr, place: int | None, scope: FileScope, function: ast.FunctionDef, deep: int
) -> int | None:
    """The bound of a value, or of one part of an unpacked tuple."""
    if place is None:
        return greatest(value, scope, function, deep)
    if isinstance(value, ast.Tuple) and place < len(value.elts):
        return greatest(value.elts[place], scope, function, deep)
    return bound_return(value, place, scope, deep) if isinstance(value, ast.Call) else None


def find_limit(name: str, scope: FileScope, function: ast.FunctionDef, deep: int) -> int | None:
    """The limit of `if NAME > LIMIT: raise`."""
    for node in ast.walk(function):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        test = node.test
        raises = bool(node.body) and isinstance(node.body[-1], ast.Raise)
        if raises and dotted_name(test.left) == name and isinstance(test.ops[0], (ast.Gt, ast.GtE)):
            return greatest(test.comparators[0], scope, function, deep) if deep else None
    return None


def smallest(limit: int | None, bound: int | None) -> int | None:
    """The lower of two bounds, of which one may be unknown."""
    known = [one for one in (limit, bound) if one is not None]
    return min(known) if known else None


def highest(bounds: list[int | None]) -> int | None:
    """The highest of all; None where one is unknown."""
    known = [one for one in bounds if one is not None]
    return max(known) if known and len(known) == len(bounds) else None


def find_arguments(
    name: str, parameters: list[str], function: ast.FunctionDef, scope: FileScope
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
