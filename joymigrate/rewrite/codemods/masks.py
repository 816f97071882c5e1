"""Boolean masks that make shapes depend on data: `x[mask] = 0`, `x[y > 0]`.

Where the mask compares the very tensor, so that shapes agree, `x[x > 0] = 0` has an equal of fixed
shape, `masked_fill_`, written on request; `x[x > 0] = y[x > 0]` and `x[x > 0] *= 2` have one by
`torch.where`. A mask of fewer dimensions goes with the first ones of the tensor, which those two
do not do, so it is only reported, as is reading through a mask.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.arrays import is_array
from joymigrate.rewrite.module import Module

ONE_SHAPE = "masked_fill_ does the same where the mask has the shape of the tensor"


def find(module: Module) -> Iterator[Finding]:
    """Findings for subscripts that are comparisons or named like masks."""
    if "torch" not in module.source.text:
        return
    for node in module.names.nodes[ast.Subscript]:
        if not mask(node.slice) or is_array(module, node):
            continue
        parent = getattr(node, "parent", None)
        if isinstance(node.ctx, ast.Store) and isinstance(parent, ast.Assign):
            yield assignment(module, node, parent)
        elif isinstance(node.ctx, ast.Store) and isinstance(parent, ast.AugAssign):
            yield scale_masked(module, node, parent)
        elif isinstance(node.ctx, ast.Load) and not taken_over(node, parent):
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
    simple = isinstance(node.value, (ast.Name, ast.Attribute)) and len(parent.targets) == 1
    if simple and taken_over(parent.value, parent):
        other = module.text(parent.value.value)  # type: ignore[attr-defined]
        return masked_in_place(module, node, parent, other)
    if not number(parent.value) or not simple:
        return module.find("JM211", node, tier=Tier.REPORT)
    if not own_mask(node):
        return module.find("JM211", node, tier=Tier.REPORT, reason=ONE_SHAPE)
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


def number(node: ast.expr) -> bool:
    """A number, with or without a sign."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


def own_mask(node: ast.Subscript) -> bool:
    """`x[x > 0]`: the mask compares the indexed tensor itself, so it has its shape."""
    index = node.slice
    return isinstance(index, ast.Compare) and ast.dump(index.left) == ast.dump(
        ast.parse(ast.unparse(node.value), mode="eval").body
    )


def taken_over(node: ast.AST, parent: ast.AST | None) -> bool:
    """The right side of `x[x > 0] = y[x > 0]`, which goes with the left one."""
    if not isinstance(parent, ast.Assign) or parent.value is not node or len(parent.targets) != 1:
        return False
    target = parent.targets[0]
    return (
        isinstance(node, ast.Subscript)
        and isinstance(target, ast.Subscript)
        and ast.dump(node.slice) == ast.dump(target.slice)
        and isinstance(node.value, (ast.Name, ast.Attribute))
        and own_mask(target)
    )


def scale_masked(module: Module, node: ast.Subscript, parent: ast.AugAssign) -> Finding:
    """`x[x > 0] *= 2` becomes a choice between `x * 2` and `x`."""
    signs = {ast.Mult: "*", ast.Add: "+", ast.Sub: "-", ast.Div: "/"}
    sign = signs.get(type(parent.op))
    if sign is None or not number(parent.value) or not own_mask(node):
        return module.find("JM211", node, tier=Tier.REPORT)
    return masked_in_place(
        module, node, parent, f"{module.text(node.value)} {sign} {module.text(parent.value)}"
    )


def masked_in_place(
    module: Module, node: ast.Subscript, parent: ast.Assign | ast.AugAssign, other: str
) -> Finding:
    """`x.copy_(torch.where(mask, other, x))`: the same tensor, so that other names see it."""
    text = module.text(parent)
    if "\n" in text or "#" in text or not torch_is_known(module):
        return module.find("JM211", node, tier=Tier.REPORT)
    x, mask = module.text(node.value), module.text(node.slice)
    written = f"{x}.copy_(torch.where({mask}, {other}, {x}))"
    return module.find(
        "JM211",
        parent,
        edits=[(*module.span(parent), written)],
        tier=Tier.UNSAFE,
        reason="equal for tensors; an array indexed this way has no torch.where",
    )


def torch_is_known(module: Module) -> bool:
    """Whether the file imports torch by that name."""
    return any(
        alias.name == "torch" and alias.asname is None
        for node in module.names.nodes[ast.Import]
        for alias in node.names
    )
