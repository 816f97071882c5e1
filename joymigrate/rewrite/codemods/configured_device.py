"""A device that a configuration of the project names, where torch is given it: `cfg["device"]`.

The file keeps the origin's word, which the origin's machines read too; the agnostic style
translates it at torch's own call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Style
from joymigrate.rewrite.device_texts import last_name
from joymigrate.rewrite.module import Module


def find(module: Module) -> Iterator[Finding]:
    """Findings for such values in calls of `torch.device` and `.to`."""
    keys = module.context.configured
    if module.context.style is not Style.AGNOSTIC or not keys or module.vocabulary.same_device:
        return
    for call in module.names.nodes[ast.Call]:
        given = call.args[0] if call.args else None
        if given is None or module.guarded(call) is not None:
            continue
        if isinstance(given, ast.IfExp):  # `cfg["device"] if torch.cuda.is_available() else "cpu"`
            given = next((g for g in (given.body, given.orelse) if read_key(g) in keys), given)
        if read_key(given) not in keys:
            continue
        made = module.names.dotted(call.func) == "torch.device"
        moved = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
        if made or (moved and module.names.dotted(call.func) is None):
            start, end = module.span(given)
            edits = [(start, start, f"{module.helper}.device("), (end, end, ")")]
            yield module.find("JM121", given, edits=edits, needs="helper")


def read_key(node: ast.expr) -> str:
    """The key of a configuration that an expression reads: `cfg["device"]`, `cfg.run.device`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        first = node.args[0] if node.func.attr == "get" and node.args else None
        return str(getattr(first, "value", ""))
    if isinstance(node, ast.Subscript):
        return str(getattr(node.slice, "value", ""))
    return last_name(node) if isinstance(node, ast.Attribute) else ""
