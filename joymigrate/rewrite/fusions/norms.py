"""RMSNorm written out: one expression, or the body of a module's `forward`.

x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.rewrite.fusions import chip_calls
from joymigrate.rewrite.fusions.chip_calls import Fusion, Place
from joymigrate.rewrite.module import Module


@dataclass(frozen=True, slots=True)
class Norm:
    """`x * rsqrt(mean(x²) + eps)`, without the weight."""

    x: ast.expr
    eps: ast.expr


def rms_norms(module: Module, template: str) -> Iterator[Place]:
    """Expressions, and first statements of methods, that are an RMSNorm and nothing else."""
    written = set()  # expressions of methods that make the call before them
    for function in module.names.nodes[ast.FunctionDef]:
        fusion = in_method(module, function, template)
        if fusion is not None:
            body = [s for s in function.body if not documentation(s)]
            written |= {each for each in ast.walk(function) if isinstance(each, ast.BinOp)}
            yield module.span(body[0]), fusion
    for node in module.names.nodes[ast.BinOp]:
        fusion = in_expression(module, node, template) if node not in written else None
        if fusion is not None:
            yield module.span(node), fusion


def in_expression(module: Module, node: ast.BinOp, template: str) -> Fusion | None:
    """The whole norm with its weight in one expression."""
    for scaled, weight in chip_calls.factors(node):
        norm = read_norm(module, scaled)
        if norm is None or not chip_calls.simple(norm.x) or not chip_calls.simple(weight):
            continue
        if chip_calls.knows_chip(module, node):
            return None
        x, scale = module.text(norm.x), module.text(weight)
        call = template.format(x=x, weight=scale, eps=module.text(norm.eps))
        return Fusion(call, (chip_calls.on_chip(module, x), f"{scale}.dtype == {x}.dtype"))
    return None


def in_method(module: Module, node: ast.FunctionDef, template: str) -> Fusion | None:
    """`forward(self, x)` of a module with `self.weight`: the call is put before the body."""
    names = [argument.arg for argument in node.args.args]
    if node.name != "forward" or len(names) != 2 or node.args.vararg or node.args.kwonlyargs:
        return None
    body = [s for s in node.body if not documentation(s)]
    eps = epsilon(module, node, body, names[1])
    if eps is None or body[0].lineno == node.lineno or chip_calls.knows_chip(module, node):
        return None
    x = names[1]
    call = template.format(x=x, weight="self.weight", eps=eps)
    return Fusion(call, (chip_calls.on_chip(module, x), f"self.weight.dtype == {x}.dtype"))


def documentation(node: ast.stmt) -> bool:
    """A docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def epsilon(module: Module, node: ast.FunctionDef, body: list[ast.stmt], x: str) -> str | None:
    """The text of epsilon, when the body computes the RMSNorm of `x` times `self.weight`.

    Statements may save the type, cast up and down, and name parts; nothing else.
    """
    if not body or not isinstance(body[-1], ast.Return) or body[-1].value is None:
        return None
    values: dict[str, ast.expr] = {}
    for statement in body[:-1]:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return None
        if not (isinstance(statement.value, ast.Attribute) and statement.value.attr == "dtype"):
            values[target.id] = inline_values(statement.value, values)
    result = inline_values(body[-1].value, values)
    for scaled, weight in chip_calls.factors(result):
        if ast.unparse(weight) != "self.weight":
            continue
        norm = read_norm(module, through_method(module, node, uncast(scaled)))
        if norm is not None and ast.unparse(norm.x) == x and chip_calls.simple(norm.eps):
            return ast.unparse(norm.eps)
    return None


def inline_values(node: ast.expr, values: dict[str, ast.expr]) -> ast.expr:
    """An expression with names replaced by what was assigned to them, and without casts."""

    class Inline(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return values.get(name.id, name)

        def visit_Call(self, call: ast.Call) -> ast.AST:
            self.generic_visit(call)
            return uncast(call)

    made: ast.expr = Inline().visit(ast.parse(ast.unparse(node), mode="eval").body)
    return made


def uncast(node: ast.expr) -> ast.expr:
    """What `.float()`, `.to(dtype)`, `.type_as(x)` are called on."""
    for name in ("float", "to", "type_as"):
        inner = chip_calls.method(node, name)
        if inner is not None:
            return uncast(inner)
    return node


def through_method(module: Module, node: ast.FunctionDef, value: ast.expr) -> ast.expr:
    """The body of `self._norm(x)` in place of its call, where it is one return."""
    if not (isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords):
        return value
    name = value.func.attr if isinstance(value.func, ast.Attribute) else ""
    owner = module.names.enclosing(node, (ast.ClassDef,))
    if ast.unparse(value.func) != f"self.{name}" or not isinstance(owner, ast.ClassDef):
        return value
    for each in owner.body:
        if isinstance(each, ast.FunctionDef) and each.name == name and len(each.args.args) == 2:
            body = [s for s in each.body if not documentation(s)]
            if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
                return inline_values(body[0].value, {each.args.args[1].arg: value.args[0]})
    return value


def read_norm(module: Module, node: ast.expr) -> Norm | None:
    """`x * rsqrt(mean(x²) + eps)` in either order, or with a parenthesis around it."""
    for x, rate in chip_calls.factors(node):
        inner = reciprocal(module, rate)
        if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add)):
            continue
        for mean, eps in ((inner.left, inner.right), (inner.right, inner.left)):
            if mean_square(module, mean, x):
                return Norm(x, eps)
    return None


def reciprocal(module: Module, node: ast.expr) -> ast.expr | None:
    """What `torch.rsqrt(…)` is taken of."""
    if not (isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords):
        return None
    # A copy of the tree has no names to look up; its text says it.
    names = (module.names.dotted(node.func), ast.unparse(node.func))
    return node.args[0] if "torch.rsqrt" in names else None


def mean_square(module: Module, node: ast.expr, x: ast.expr) -> bool:
    """`x.pow(2).mean(-1, keepdim=True)`, or with `x ** 2`, `x * x`."""
    squared = chip_calls.method(node, "mean")
    if squared is None or not isinstance(node, ast.Call):
        return False
    last = chip_calls.number(chip_calls.argument(node, "dim", 0), -1)
    keep = chip_calls.argument(node, "keepdim", 1)
    if not last or not (isinstance(keep, ast.Constant) and keep.value is True):
        return False
    base = chip_calls.method(squared, "pow")
    if base is not None and isinstance(squared, ast.Call) and len(squared.args) == 1:
        return chip_calls.number(squared.args[0], 2) and chip_calls.same(base, x)
    if isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Pow):
        return chip_calls.number(squared.right, 2) and chip_calls.same(squared.left, x)
    if isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Mult):
        return chip_calls.same(squared.left, x) and chip_calls.same(squared.right, x)
    return False
