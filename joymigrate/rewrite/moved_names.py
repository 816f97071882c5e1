"""Names of the origin that stand elsewhere on the target: which part of a chain moves."""

from __future__ import annotations

import ast

from joymigrate.chips import NameAdvice
from joymigrate.rewrite.module import Module

# Names that mean the origin's device unless they are given one, with their other arguments.
WITHOUT_DEVICE = {"is_autocast_enabled": 0, "set_autocast_enabled": 1}


def gives_device(node: ast.expr, name: str) -> bool:
    """Whether a name is called with a device: `torch.is_autocast_enabled("cpu")`."""
    others = WITHOUT_DEVICE.get(name.rpartition(".")[2])
    call = getattr(node, "parent", None)
    if others is None or not isinstance(call, ast.Call) or call.func is not node:
        return False
    return len(call.args) + len(call.keywords) > others


def moved_part(
    module: Module, top: ast.expr, dotted: str
) -> tuple[ast.expr, str, NameAdvice] | None:
    """The longest part of a chain that the chips list as moved, with what it becomes."""
    node, name = top, dotted
    while True:
        advice = module.vocabulary.moved(name)
        if advice is not None and gives_device(node, name):
            return None
        if advice is not None and (advice.to is not None or not under_moved_import(module, node)):
            return node, name, advice
        if not isinstance(node, ast.Attribute):
            return None
        node, name = node.value, name.rpartition(".")[0]


def under_moved_import(module: Module, node: ast.expr) -> bool:
    """Whether a chain starts at an imported name that moves at its import."""
    if module.context.style.portable:
        return False  # imports stay there
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    bound = module.names.dotted(root)
    base = module.vocabulary.moved(bound) if bound and bound not in module.unmoved else None
    return base is not None and base.to is not None
