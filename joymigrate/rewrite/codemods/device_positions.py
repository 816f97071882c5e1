"""Parts of a device's text that are read by position: `device[5:]`, the card behind `cuda:`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Style
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.flow_sinks import DEVICE
from joymigrate.rewrite.module import Module


def find(module: Module) -> Iterator[Finding]:
    """Findings for positions that are right for the origin's name alone."""
    words = module.vocabulary
    behind = len(words.device) + 1
    if words.same_device or f"[{behind}" not in module.source.text.replace(" ", ""):
        return
    for node in module.names.nodes[ast.Subscript]:
        at = node.slice.lower if isinstance(node.slice, ast.Slice) else node.slice
        if not (
            isinstance(at, ast.Constant) and at.value == behind and is_text(module, node.value)
        ):
            continue
        if module.context.style is Style.SHIM or module.guarded(node):
            continue
        to = str(len(words.to_device) + 1)
        if module.context.style is Style.AGNOSTIC:
            to = f"len({module.helper}.accelerator()) + 1"
        yield module.find("JM122", at, edits=[(*module.span(at), to)], needs=need(module))


def is_text(module: Module, node: ast.expr) -> bool:
    """Whether an expression is a device's text: `str(x.device)`, or a name for a device."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") == "str" and module.flow.is_device(node)
    name = getattr(node, "attr", getattr(node, "id", ""))
    return module.sinks.names.get(name) == DEVICE
