"""Boolean masks that make shapes depend on data: `x[mask] = 0`, `x[y > 0]`.

`x[mask] = scalar` has an equal of fixed shape, `masked_fill_`, written on request. Reading through
a mask has none that fits everywhere, so it is only reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module


def find(module: Module) -> Iterator[Finding]:
    """Findings for subscripts that are comparisons or named like masks."""
    if "torch" not in module.source.text:
        return
    for node in module.names.nodes[ast.Subscript]:
        if not mask(node.slice):
            continue
        parent = getattr(node, "parent", None)
        if isinstance(node.ctx, ast.Store) and isinstance(parent, ast.Assign):
            yield assignment(module, node, parent)
        elif isinstance(node.ctx, ast.Load):
            yield module.find("JM211", node, tier=Tier.REPORT)


def mask(index: ast.expr) -> bool:
    """Whether an index is a boolean expression over tensors, by its form or its name."""
    if isinstance(index, ast.Compare):
        numbers = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)
        return isinstance(index.ops[0], numbers) and not isinstance(index.left, ast.Constant)
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return True
    name = index.id if isinstance(index, ast.Name) else getattr(index, "attr", "")
    return name == "mask" or name.endswith("_mask")


def assignment(module: Module, node: ast.Subscript, parent: ast.Assign) -> Finding:
    """`x[mask] = number` becomes `x.masked_fill_(mask, number)`, on request."""
    number = isinstance(parent.value, ast.Constant) or (
        isinstance(parent.value, ast.UnaryOp) and isinstance(parent.value.operand, ast.Constant)
    )
    simple = isinstance(node.value, (ast.Name, ast.Attribute)) and len(parent.targets) == 1
    if not number or not simple:
        return module.find("JM211", node, tier=Tier.REPORT)
    text = module.text(parent)
    if "\n" in text or "#" in text:
        return module.find("JM211", node, tier=Tier.REPORT)
    written = (
        f"{module.text(node.value)}.masked_fill_({module.text(node.slice)}, "
        f"{module.text(parent.value)})"
    )
    return module.find(
        "JM211",
        parent,
        edits=[(*module.span(parent), written)],
        tier=Tier.UNSAFE,
        reason="equal for tensors; a list or an array indexed this way has no masked_fill_",
    )
