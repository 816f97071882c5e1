"""How large the tiles of a Triton kernel are, with the numbers that one launch says.

Shapes are followed through the kernel: `arange`, `x[:, None]`, broadcasting, `zeros`, block
pointers, reductions. A size that no launch says counts as one, and so does what a helper returns:
the result never says more than the source does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from joymigrate.profile.port.dotted import dotted_name
from joymigrate.profile.port.values import LARGEST

Shape = tuple[int, ...]
REDUCES = frozenset(("sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum"))
MADE = frozenset(("zeros", "full", "reshape", "view", "broadcast_to"))  # the shape is an argument
KEEPS = frozenset(("to", "cast"))


@dataclass(frozen=True, slots=True)
class Tile:
    """One value of a kernel: its elements, how it is made, and whether a product takes it."""

    line: int
    shape: Shape
    kind: str  # load, or what made it
    operand: bool = False

    @property
    def elements(self) -> int:
        """Of one value."""
        return prod(self.shape)


@dataclass(slots=True)
class Tiles:
    """Follows shapes through one kernel. `numbers` are its parameters that are known."""

    language: frozenset[str]
    numbers: dict[str, int]
    shapes: dict[str, Shape] = field(default_factory=dict)
    blocks: dict[str, Shape] = field(default_factory=dict)  # what block pointers point at
    found: list[Tile] = field(default_factory=list)
    unknown: dict[str, None] = field(default_factory=dict)  # sizes that no launch says
    operands: frozenset[str] = frozenset()

    def walk(self, statements: list[ast.stmt]) -> None:
        """Every statement once, in order."""
        for node in statements:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.assign([dotted_name(one) for one in targets], node.value)
            elif isinstance(node, ast.AugAssign):
                self.assign([dotted_name(node.target)], ast.BinOp(node.target, node.op, node.value))
            elif isinstance(node, ast.Expr):
                self.shape(node.value)
            elif isinstance(node, (ast.For, ast.While, ast.If, ast.With)):
                self.walk(node.body)
                self.walk(getattr(node, "orelse", []))

    def assign(self, names: list[str], value: ast.expr) -> None:
        """Remember what names hold."""
        number = number_of(value, self.numbers)
        if isinstance(value, ast.Call) and self.name(value) == "make_block_ptr":
            block = argument_of(value, "block_shape", 4)
            self.blocks |= dict.fromkeys(names, self.sizes(block))
            return
        operand = bool(self.operands.intersection(names))
        shape = self.shape(value, operand=operand)
        for name in names:
            if number is not None:
                self.numbers[name] = number
            elif not isinstance(value, ast.Constant):
                self.numbers.pop(name, None)
            self.shapes[name] = shape
            held = dotted_name(value.args[0]) if isinstance(value, ast.Call) and value.args else ""
            if held in self.blocks:
                self.blocks[name] = self.blocks[held]

    def name(self, call: ast.Call) -> str:
        """`load` of `tl.load`; empty for what is no part of the language."""
        first, _, rest = dotted_name(call.func).partition(".")
        return rest if first in self.language else ""

    def sizes(self, node: ast.expr | None) -> Shape:
        """The numbers of a tuple; one for each that is not known."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(number_of(one, self.numbers) or 1 for one in node.elts)
        return ()

    def shape(self, node: ast.expr | None, *, operand: bool = False) -> Shape:
        """The shape of a value; () for a number and for what is not known."""
        if isinstance(node, ast.Name):
            return self.shapes.get(node.id, ())
        if isinstance(node, ast.Subscript):
            return index_shape(self.shape(node.value, operand=operand), node.slice)
        if isinstance(node, ast.Call):
            return self.called(node, operand)
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        return broadcast([self.shape(one, operand=operand) for one in parts])

    def called(self, node: ast.Call, operand: bool) -> Shape:
        """The shape of what a call returns; loads and new tiles are noted."""
        name = self.name(node)
        if name == "dot":
            given = [self.shape(one, operand=True) for one in node.args[:2]]
            made = (*given[0][:-1], given[1][-1]) if all(len(g) > 1 for g in given) else ()
            self.note(node, made, "dot", operand)
            return made
        if name == "arange":
            end = node.args[1] if len(node.args) > 1 else None
            number = number_of(end, self.numbers)
            if number is None and end is not None:
                self.unknown[ast.unparse(end)] = None
            return (number or 1,)
        base = name or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        method = not name and isinstance(node.func, ast.Attribute)
        held = [node.func.value] if method and isinstance(node.func, ast.Attribute) else []
        inputs = [*held, *node.args]
        if base in MADE:
            wanted = argument_of(
                node, "shape", len(inputs) - 1 if base in ("reshape", "view") else 0
            )
            wanted = wanted or (inputs[1] if base == "broadcast_to" and len(inputs) > 1 else None)
            made = self.sizes(wanted) or self.sizes(inputs[-1] if inputs else None)
            if base in ("zeros", "full"):
                self.note(node, made, base, operand)
            return made
        shapes = [self.shape(one, operand=operand) for one in inputs]
        if base == "load":
            made = self.blocks.get(
                dotted_name(node.args[0]) if node.args else "", broadcast(shapes[:1])
            )
            self.note(node, made, "load", operand)
            return made
        if base in REDUCES:
            return self.reduced(node, shapes[0] if shapes else (), inputs[1:])
        if base == "expand_dims" and shapes:
            axis = number_of(argument_of(node, "axis", len(node.args) - 1), self.numbers)
            at = len(shapes[0]) if axis is None else axis
            return (*shapes[0][:at], 1, *shapes[0][at:])
        if base == "trans" and shapes:
            return shapes[0][::-1]
        return broadcast(shapes[:1] if base in KEEPS else shapes) if name or method else ()

    def reduced(self, node: ast.Call, shape: Shape, rest: list[ast.expr]) -> Shape:
        """A shape without the axis that a reduction takes away."""
        axis = argument_of(node, "axis", -1) or (rest[0] if rest else None)
        number = number_of(axis, self.numbers) if axis is not None else None
        if number is None or number >= len(shape):
            return ()
        return shape[:number] + shape[number + 1 :]

    def note(self, node: ast.Call, shape: Shape, kind: str, operand: bool) -> None:
        """Keep a tile that was loaded or made."""
        if shape:
            self.found.append(Tile(node.lineno, shape, kind, operand))


def tiles_of(
    function: ast.FunctionDef, language: frozenset[str], numbers: Mapping[str, int]
) -> Tiles:
    """What a kernel loads and makes."""
    tiles = Tiles(language, dict(numbers), operands=frozenset(taken_by_products(function)))
    tiles.walk(function.body)
    return tiles


def taken_by_products(function: ast.FunctionDef) -> Iterator[str]:
    """Names that `dot` takes as its factors, which lie in a memory of their own."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] == "dot":
            for part in node.args[:2]:
                yield from (n.id for n in ast.walk(part) if isinstance(n, ast.Name))


def argument_of(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """An argument by its name or place."""
    found = next((k.value for k in call.keywords if k.arg == name), None)
    if found is None and 0 <= place < len(call.args):
        found = call.args[place]
    return found


def index_shape(shape: Shape, index: ast.expr) -> Shape:
    """The shape behind `x[:, None]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    left = list(shape)
    found: list[int] = []
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is None:
            found.append(1)
        elif left:
            size = left.pop(0)
            found += [size] if isinstance(part, ast.Slice) else []
    return (*found, *left)


def broadcast(shapes: list[Shape]) -> Shape:
    """The shape of what is computed lane by lane."""
    found: Shape = ()
    for shape in shapes:
        rank = max(len(found), len(shape))
        one, other = ((1,) * (rank - len(s)) + s for s in (found, shape))
        found = tuple(map(max, one, other))
    return found


def number_of(node: ast.expr | None, numbers: Mapping[str, int]) -> int | None:
    """A whole number that is known while the kernel is compiled."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return numbers.get(node.id)
    if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] in ("min", "max"):
        found = [number_of(one, numbers) for one in node.args]
        known = [one for one in found if one is not None]
        if len(known) == len(found):
            return min(known) if dotted_name(node.func).endswith("min") else max(known)
        return None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = number_of(node.left, numbers), number_of(node.right, numbers)
    if left is None or right is None or max(abs(left), abs(right)) > LARGEST:
        return None
    if isinstance(node.op, ast.FloorDiv) and right:
        return left // right
    if isinstance(node.op, ast.Pow) and not (0 <= right < 64):
        return None
    table = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
    if isinstance(node.op, ast.Pow):
        return int(left**right)
    return table.get(type(node.op))
