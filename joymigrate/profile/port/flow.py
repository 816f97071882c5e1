"""What a kernel does with its parameters: addresses and tests.

Functions that a kernel calls are looked into, where they stand in the same file. Types and
sizes are Triton's front end to find: a wrong one is an error (`retry.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from joymigrate.profile.port.dotted_names import dotted_name, name_below

ACCESS = frozenset(("load", "store", "make_block_ptr", "make_tensor_descriptor"))
SAME = frozenset(("advance", "multiple_of", "max_contiguous", "max_constancy", "cast",
                  "broadcast_to", "make_block_ptr", "make_tensor_descriptor"))  # fmt: skip
DEEP = 4  # calls of helpers that are followed


@dataclass(slots=True)
class Uses:
    """Parameters of one function by what is done with them."""

    pointers: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)  # multiplied, divided or compared
    tested: set[str] = field(default_factory=set)  # an `if` asks them as they are
    nullable: set[str] = field(default_factory=set)  # compared with None
    choices: dict[str, list[object]] = field(default_factory=dict)  # compared with these constants


class KernelFlow:
    """The functions of one file, each looked at once."""

    def __init__(self, tree: ast.Module, language: frozenset[str]) -> None:
        self.language = language
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.known: dict[str, Uses] = {}
        self.made: dict[str, dict[str, list[ast.expr]]] = {}

    def uses(self, function: ast.FunctionDef, deep: int = DEEP) -> Uses:
        """What a function does with its parameters."""
        if function.name not in self.known:
            self.known[function.name] = Uses()  # of one that calls itself
            self.known[function.name] = FunctionReader(self, function, deep).read()
        return self.known[function.name]

    def name_of(self, call: ast.Call) -> str:
        """The name below triton.language, or of a method; "" for any other call."""
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return name_below(call.func, self.language) or method


class FunctionReader:
    """Reads one function."""

    def __init__(self, flow: KernelFlow, function: ast.FunctionDef, deep: int) -> None:
        self.flow = flow
        self.function = function
        self.deep = deep
        self.parameters = [a.arg for a in function.args.args]
        self.made = assignments(function)
        self.uses = Uses()

    def read(self) -> Uses:
        """Look at every statement once."""
        for node in ast.walk(self.function):
            if isinstance(node, (ast.BinOp, ast.Compare)):
                self.arithmetic(node)
        for node in ast.walk(self.function):
            if isinstance(node, ast.Call):
                self.call(node)
            elif isinstance(node, (ast.If, ast.IfExp)):
                self.test(node.test)
            elif isinstance(node, ast.Compare):
                self.compare(node)
        parameters = set(self.parameters)
        for group in ("pointers", "numbers", "tested", "nullable"):
            setattr(self.uses, group, getattr(self.uses, group) & parameters)
        return self.uses

    def arithmetic(self, node: ast.BinOp | ast.Compare) -> None:
        """Factors, divisors and what is compared with an order are no pointers."""
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            return
        if isinstance(node, ast.Compare) and isinstance(
            node.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE)
        ):
            parts = [node.left, *node.comparators]
        self.uses.numbers |= {one.id for one in parts if isinstance(one, ast.Name)}

    def call(self, call: ast.Call) -> None:
        """An access, or a helper."""
        name = self.flow.name_of(call)
        words = {k.arg: k.value for k in call.keywords}
        if name in ACCESS or name.startswith("atomic_"):
            address = call.args[0] if call.args else words.get("pointer", words.get("base"))
            if address is not None:
                self.uses.pointers |= self.bases(address)
        helper = self.flow.functions.get(dotted_name(call.func))
        if helper is not None and self.deep:
            self.helper(helper, call)

    def helper(self, helper: ast.FunctionDef, call: ast.Call) -> None:
        """What a function of the file does with what it is given."""
        inner = self.flow.uses(helper, self.deep - 1)
        given = dict(zip((a.arg for a in helper.args.args), call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        for name, value in given.items():
            if name in inner.pointers:
                self.uses.pointers |= self.bases(value)
            if isinstance(value, ast.Name):
                for group in ("tested", "nullable"):
                    if name in getattr(inner, group):
                        getattr(self.uses, group).add(value.id)
                if name in inner.choices:
                    self.uses.choices.setdefault(value.id, []).extend(inner.choices[name])

    def test(self, test: ast.expr) -> None:
        """Names that a test asks as they are."""
        parts = [test]
        while parts:
            part = parts.pop()
            if isinstance(part, ast.BoolOp):
                parts += part.values
            elif isinstance(part, ast.UnaryOp):
                parts.append(part.operand)
            elif isinstance(part, ast.Name):
                self.uses.tested.add(part.id)

    def compare(self, node: ast.Compare) -> None:
        """A parameter that is compared with None or with constants."""
        name = dotted_name(node.left)
        for operator, right in zip(node.ops, node.comparators, strict=True):
            values = right.elts if isinstance(right, (ast.Tuple, ast.List)) else [right]
            found = [one.value for one in values if isinstance(one, ast.Constant)]
            if name not in self.parameters or not found:
                continue
            if None in found:
                self.uses.nullable.add(name)
            elif isinstance(operator, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
                self.uses.choices.setdefault(name, []).extend(found)

    def bases(self, node: ast.expr, seen: tuple[str, ...] = ()) -> set[str]:
        """The parameter that an address starts from; several where branches differ."""
        if isinstance(node, ast.Name):
            if node.id in self.parameters:
                return {node.id}
            if node.id in seen:
                return set()
            made = self.made.get(node.id, ())
            return {one for value in made for one in self.bases(value, (*seen, node.id))}
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            left = self.bases(node.left, seen) - self.uses.numbers
            return left or self.bases(node.right, seen) - self.uses.numbers
        if isinstance(node, ast.IfExp):
            return self.bases(node.body, seen) | self.bases(node.orelse, seen)
        if isinstance(node, ast.Subscript):
            return self.bases(node.value, seen)
        if isinstance(node, ast.Call):
            name = self.flow.name_of(node)
            if name == "to" and isinstance(node.func, ast.Attribute):
                return self.bases(node.func.value, seen)
            first = node.args[:1] or [k.value for k in node.keywords if k.arg == "base"]
            if name == "where":
                first = node.args[1:3]
            if name in SAME or name == "where" or dotted_name(node.func) in self.flow.functions:
                return {one for value in first for one in self.bases(value, seen)}
        return set()


def assignments(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """What each name is given; of a tuple the part where it can be told."""
    made: dict[str, list[ast.expr]] = {}

    def give(target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for place, one in enumerate(target.elts):
                give(one, parts[place] if len(parts) == len(target.elts) else value)
        elif isinstance(target, ast.Name):
            made.setdefault(target.id, []).append(value)

    for node in ast.walk(function):
        for target, value in given_in(node):
            give(target, value)
    return made


def given_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of a statement."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
        for one in node.iter.args:
            yield node.target, one
