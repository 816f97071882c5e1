"""Rotary embedding and SwiGLU written out, in one expression each.

q * cos + rotate_half(q) * sin
F.silu(gate) * up
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.rewrite.fusions import chip_calls
from joymigrate.rewrite.fusions.chip_calls import Fusion, Place
from joymigrate.rewrite.module import Module

HALVES = "rotate_half"


def rotary_embeddings(module: Module, template: str) -> Iterator[Place]:
    """`q * cos + rotate_half(q) * sin`: all parts are names, with four axes at run time."""
    if not rotates(module):
        return
    for node in module.names.nodes[ast.BinOp]:
        parts = read_rotation(node)
        if parts is None or chip_calls.knows_chip(module, node):
            continue
        x, cos, sin = (module.text(part) for part in parts)
        checks = (f"{x}.dim() == {cos}.dim() == 4", f"{x}.dtype == {cos}.dtype")
        call = template.format(x=x, cos=cos, sin=sin)
        yield module.span(node), Fusion(call, (chip_calls.on_chip(module, x), *checks))


def swiglus(module: Module, template: str) -> Iterator[Place]:
    """`F.silu(gate) * up`: names of equal shape, or linear layers of equal width."""
    for node in module.names.nodes[ast.BinOp]:
        parts = read_gate(module, node)
        held = None if parts is None else check_gate(module, *parts)
        if parts is None or held is None or chip_calls.knows_chip(module, node):
            continue
        tensor, more = held
        gate, up = (module.text(part) for part in parts)
        reason = "one linear layer for gate and up would spare the concatenation"
        call = template.format(gate=gate, up=up)
        yield module.span(node), Fusion(call, (chip_calls.on_chip(module, tensor), *more), reason)


def read_rotation(node: ast.BinOp) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """`q`, `cos` and `sin` of the sum."""
    if not isinstance(node.op, ast.Add):
        return None
    for plain, turned in ((node.left, node.right), (node.right, node.left)):
        for call, sin in chip_calls.factors(turned):
            if not half_call(call):
                continue
            for x, cos in chip_calls.factors(plain):
                parts = (x, cos, sin)
                if all(map(chip_calls.simple, parts)) and chip_calls.same(call.args[0], x):  # type: ignore[attr-defined]
                    return parts
    return None


def read_gate(module: Module, node: ast.BinOp) -> tuple[ast.expr, ast.expr] | None:
    """`gate` and `up` of the product."""
    for call, up in chip_calls.factors(node):
        if chip_calls.is_call(module, call, f"{chip_calls.FUNCTIONAL}.silu") and isinstance(
            call, ast.Call
        ):
            return (call.args[0], up) if len(call.args) == 1 and not call.keywords else None
    return None


def half_call(node: ast.expr) -> bool:
    """A call of `rotate_half` with one argument."""
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return name == HALVES and isinstance(node, ast.Call) and len(node.args) == 1


def rotates(module: Module) -> bool:
    """Whether the file's `rotate_half` turns halves: defined so here, or transformers' own."""
    for node in module.names.nodes[ast.FunctionDef]:
        if node.name == HALVES:
            return turns_halves(module, node)
    return any(
        (node.module or "").startswith("transformers.")
        for node in module.names.nodes[ast.ImportFrom]
        if any(alias.name == HALVES and alias.asname is None for alias in node.names)
    )


def turns_halves(module: Module, node: ast.FunctionDef) -> bool:
    """`cat((-second, first), -1)` of the two halves of the last axis."""
    last = node.body[-1]
    if not isinstance(last, ast.Return) or len(node.args.args) != 1:
        return False
    call = last.value
    if not isinstance(call, ast.Call) or module.names.dotted(call.func) not in (
        "torch.cat",
        "torch.concat",
    ):
        return False
    parts, axis = chip_calls.argument(call, "tensors", 0), chip_calls.argument(call, "dim", 1)
    if not isinstance(parts, (ast.Tuple, ast.List)) or len(parts.elts) != 2:
        return False
    negative, first = parts.elts
    if not (isinstance(negative, ast.UnaryOp) and isinstance(negative.op, ast.USub)):
        return False
    halves = [ast.unparse(first), ast.unparse(negative.operand)]
    return chip_calls.number(axis, -1) and halves == halves_of(node)


def halves_of(node: ast.FunctionDef) -> list[str] | None:
    """Names of the first and the second half in the function's body."""
    x = node.args.args[0].arg
    chunks = {f"{x}.chunk(2, -1)", f"{x}.chunk(2, dim=-1)", f"torch.chunk({x}, 2, dim=-1)"}
    chunks |= {f"{x}.chunk({n}, dim=-1)" for n in (2,)} | {f"torch.chunk({x}, 2, -1)"}
    middle = f"{x}.shape[-1] // 2"
    named: dict[str, str] = {}
    for statement in node.body[:-1]:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target, value = statement.targets[0], ast.unparse(statement.value)
        if isinstance(target, ast.Tuple) and value in chunks and len(target.elts) == 2:
            return [ast.unparse(part) for part in target.elts]
        named[value] = ast.unparse(target)
    first, second = named.get(f"{x}[..., :{middle}]"), named.get(f"{x}[..., {middle}:]")
    return [first, second] if first and second else None


def check_gate(module: Module, gate: ast.expr, up: ast.expr) -> tuple[str, tuple[str, ...]] | None:
    """The tensor whose device counts, and what else must hold; None where it is not certain."""
    if chip_calls.simple(gate) and chip_calls.simple(up):
        first, second = module.text(gate), module.text(up)
        return first, (f"{first}.shape == {second}.shape",)
    one, other = linear(module, gate), linear(module, up)
    if one is None or other is None or one[1] != other[1] or one[0] != other[0]:
        return None
    return one[0], ()


def linear(module: Module, node: ast.expr) -> tuple[str, str] | None:
    """Input and width of `self.layer(x)`, where the class makes the layer as `nn.Linear(a, b)`."""
    if not (isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords):
        return None
    if not chip_calls.simple(node.args[0]) or not chip_calls.simple(node.func):
        return None
    layer = ast.unparse(node.func)
    owner = module.names.enclosing(node, (ast.ClassDef,))
    if owner is None or not layer.startswith("self."):
        return None
    widths = [
        ast.unparse(statement.value.args[1])
        for statement in ast.walk(owner)
        if isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == layer
        and chip_calls.is_call(module, statement.value, "torch.nn.Linear")
        and isinstance(statement.value, ast.Call)
        and len(statement.value.args) >= 2
    ]
    return (module.text(node.args[0]), widths[0]) if len(widths) == 1 else None
