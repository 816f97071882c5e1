"""Attention written out as consecutive statements or one expression.

scores = q @ k.transpose(-2, -1) * scale
scores = scores.masked_fill(mask == 0, float("-inf"))
weights = self.dropout(F.softmax(scores, dim=-1))
y = weights @ v
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from joymigrate.rewrite.fusions import chip_calls
from joymigrate.rewrite.fusions.chip_calls import Fusion, Place
from joymigrate.rewrite.module import Module

REASON = "equal up to rounding; with dropout the chip draws other random numbers"
SOFTMAX = ("torch.softmax", f"{chip_calls.FUNCTIONAL}.softmax")
INFINITE = ("float('-inf')", "-float('inf')", "float('-Inf')", "-math.inf", "-torch.inf")


@dataclass(frozen=True, slots=True)
class Scores:
    """What has been understood so far, as source text. `stage`: scores, weights, result."""

    q: str
    k: str
    v: str = ""
    scale: str = "1.0"
    mask: str = ""
    dropout: str = ""
    stage: str = "scores"
    names: frozenset[str] = field(default_factory=frozenset)  # assigned on the way

    checks: tuple[str, ...] = ()  # what must hold at run time as well

    def options(self) -> str:
        """The keywords of the fused call."""
        given = [("attn_mask", self.mask), ("dropout_p", self.dropout), ("scale", self.scale)]
        return ", ".join(f"{name}={value}" for name, value in given if value)


def attentions(module: Module, template: str) -> Iterator[Place]:
    """Runs of statements that are attention and nothing else."""
    for function in module.names.nodes[ast.FunctionDef]:
        for body in blocks(function):
            yield from in_block(module, function, body, template)


def blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Lists of statements of a function, those of functions inside it left out."""
    todo: list[ast.AST] = [function]
    while todo:
        node = todo.pop()
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body
                skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
                todo += [each for each in body if not isinstance(each, skipped)]


def in_block(
    module: Module, function: ast.FunctionDef, body: list[ast.stmt], template: str
) -> Iterator[Place]:
    """Runs of statements that begin with the scores and end with the result."""
    for first in range(len(body)):
        known: Scores | None = None
        name = ""
        for last in range(first, min(len(body), first + 8)):
            statement = body[last]
            target = target_of(statement)
            value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
            if value is None or (target is None and not isinstance(statement, ast.Return)):
                break
            known = understand(module, value, known, name)
            if known is None:
                break
            if known.stage == "result":
                run = body[first : last + 1]
                hidden = used_later(function, run, known.names - {target or ""})
                if not hidden and not chip_calls.knows_chip(module, run[0]):
                    checks = (chip_calls.on_chip(module, known.q), *known.checks)
                    call = template.format(q=known.q, k=known.k, v=known.v, options=known.options())
                    span = module.span(run[0])[0], module.span(run[-1])[1]
                    yield span, Fusion(call, checks, REASON, target)
                break
            if target is None:
                break
            name, known = target, replace(known, names=known.names | {target})


def target_of(node: ast.stmt) -> str | None:
    """The name that a statement assigns to."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


def understand(module: Module, node: ast.expr, known: Scores | None, name: str) -> Scores | None:
    """What an expression adds to what is known; `name` stands for the last value."""
    if known is not None and isinstance(node, ast.Name) and node.id == name:
        return known
    product = factors_of(module, node)
    if product is not None:
        left, right = product
        scores = find_transposed(right)
        if (
            scores is not None
            and known is None
            and chip_calls.simple(left)
            and chip_calls.simple(scores)
        ):
            return Scores(module.text(left), module.text(scores))
        weights = understand(module, left, known, name)
        if weights is not None and weights.stage == "weights" and chip_calls.simple(right):
            return replace(weights, v=module.text(right), stage="result")
        return None
    for read in (read_scale, read_mask, read_softmax, read_dropout):
        found = read(module, node, known, name)
        if found is not None:
            return found
    return None


def factors_of(module: Module, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """The factors of a matrix product: `a @ b`, `torch.matmul(a, b)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if chip_calls.is_call(module, node, "torch.matmul") and isinstance(node, ast.Call):
        return (node.args[0], node.args[1]) if len(node.args) == 2 else None
    return None


def find_transposed(node: ast.expr) -> ast.expr | None:
    """`k` of `k.transpose(-2, -1)`."""
    inner = chip_calls.method(node, "transpose")
    if inner is None or not isinstance(node, ast.Call) or len(node.args) != 2:
        return None
    axes = {ast.unparse(argument) for argument in node.args}
    return inner if axes == {"-1", "-2"} or axes == {"2", "3"} else None


def read_scale(module: Module, node: ast.expr, known: Scores | None, name: str) -> Scores | None:
    """Scores times or divided by a number, or with a mask added."""
    if not isinstance(node, ast.BinOp):
        return None
    before = understand(module, node.left, known, name)
    if before is None or before.stage != "scores":
        return None
    text = module.text(node.right)
    if isinstance(node.op, ast.Add) and not before.mask and chip_calls.simple(node.right):
        # A mask of another type is added differently by the fused call.
        return replace(
            before, mask=text, checks=(*before.checks, f"{text}.dtype == {before.q}.dtype")
        )
    if before.scale != "1.0" or before.mask or uses(node.right, before.names):
        return None
    if chip_calls.simple(node.right):  # a learned temperature has a gradient, a number has none
        before = replace(before, checks=(*before.checks, f"not isinstance({text}, torch.Tensor)"))
    if isinstance(node.op, ast.Mult):
        return replace(before, scale=text)
    return replace(before, scale=f"1.0 / ({text})") if isinstance(node.op, ast.Div) else None


def read_mask(module: Module, node: ast.expr, known: Scores | None, name: str) -> Scores | None:
    """`scores.masked_fill(hidden, float("-inf"))`."""
    inner = chip_calls.method(node, "masked_fill")
    if inner is None or not isinstance(node, ast.Call) or len(node.args) != 2:
        return None
    before = understand(module, inner, known, name)
    if before is None or before.stage != "scores" or before.mask:
        return None
    if ast.unparse(node.args[1]) not in INFINITE or uses(node.args[0], before.names):
        return None
    return replace(before, mask=f"~({module.text(node.args[0])})")


def read_softmax(module: Module, node: ast.expr, known: Scores | None, name: str) -> Scores | None:
    """The softmax over the last axis, in the type of the scores."""
    if not isinstance(node, ast.Call):
        return None
    receiver = chip_calls.method(node, "softmax")
    is_function = chip_calls.is_call(module, node, *SOFTMAX)
    inner = node.args[0] if is_function and node.args else receiver
    if inner is None or any(keyword.arg != "dim" for keyword in node.keywords):
        return None
    axis = chip_calls.argument(node, "dim", 1 if is_function else 0)
    before = understand(module, inner, known, name)
    if before is None or before.stage != "scores" or not chip_calls.number(axis, -1):
        return None
    return replace(before, stage="weights")


def read_dropout(module: Module, node: ast.expr, known: Scores | None, name: str) -> Scores | None:
    """Dropout of the weights: a layer of the module, or the function with its arguments."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    before = understand(module, node.args[0], known, name)
    if before is None or before.stage != "weights" or before.dropout:
        return None
    if chip_calls.is_call(module, node, f"{chip_calls.FUNCTIONAL}.dropout"):
        rate = chip_calls.argument(node, "p", 1)
        training = chip_calls.argument(node, "training", 2)
        if rate is None or (training is not None and ast.unparse(training) != "self.training"):
            return None
        text = module.text(rate)
        text = f"({text} if self.training else 0.0)" if training is not None else text
        return replace(before, dropout=text)
    layer = ast.unparse(node.func)
    if len(node.args) == 1 and not node.keywords and is_dropout(module, node, layer):
        return replace(before, dropout=f"({layer}.p if {layer}.training else 0.0)")
    return None


def is_dropout(module: Module, node: ast.AST, layer: str) -> bool:
    """Whether the class makes `self.layer` as `nn.Dropout(…)`, and nothing else."""
    owner = module.names.enclosing(node, (ast.ClassDef,))
    if owner is None or not layer.startswith("self."):
        return False
    made = [
        statement.value
        for statement in ast.walk(owner)
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == layer
    ]
    return bool(made) and all(
        chip_calls.is_call(module, value, "torch.nn.Dropout") for value in made
    )


def uses(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether an expression reads one of the names."""
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def used_later(function: ast.FunctionDef, run: list[ast.stmt], names: frozenset[str]) -> bool:
    """Whether the scores or weights are read outside of the run."""
    inside = {id(node) for statement in run for node in ast.walk(statement)}
    return any(
        isinstance(node, ast.Name)
        and node.id in names
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        and node.lineno >= run[0].lineno
        for node in ast.walk(function)
    )
