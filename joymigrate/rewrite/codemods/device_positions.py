"""Parts of a device's text that are read by position.

`device[5:]`, the card behind `cuda:`, and its colon: `device[4] == ":"`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.model import Finding, Style
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.flow_sinks import DEVICE
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.scopes import COMPREHENSIONS


def find(module: Module) -> Iterator[Finding]:
    """Findings for positions that are right for the origin's name alone."""
    words = module.vocabulary
    behind = len(words.device) + 1
    either = rf"\[ *(?:{behind}|{behind - 1})"
    if words.same_device or not re.search(either, module.source.text):
        return
    for node in module.names.nodes[ast.Subscript]:
        at = node.slice.lower if isinstance(node.slice, ast.Slice) else node.slice
        if not isinstance(at, ast.Constant) or at.value not in (behind, behind - 1):
            continue
        known = at.value
        if not is_text(module, node.value):
            continue
        colon = known == behind - 1
        if colon and not is_colon(node):
            continue
        if module.context.style is Style.SHIM or module.guarded(node):
            continue
        to = str(len(words.to_device) + (not colon))
        if module.context.style is Style.AGNOSTIC:
            to = f"len({module.helper}.accelerator())" + " + 1" * (not colon)
        yield module.find("JM122", at, edits=[(*module.span(at), to)], needs=need(module, at))


def is_colon(node: ast.Subscript) -> bool:
    """Whether a letter is looked at to see if a card's number follows: `device[4] == ":"`."""
    parent = getattr(node, "parent", None)
    sides = [parent.left, *parent.comparators] if isinstance(parent, ast.Compare) else []
    return any(isinstance(each, ast.Constant) and each.value == ":" for each in sides)


def is_text(module: Module, node: ast.expr) -> bool:
    """Whether an expression is a device's text: `str(x.device)`, or a name for a device.

    A name is what it is given: a list of devices is no text, and `name = str(x.device)` is one.
    """
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") == "str" and module.flow.is_device(node)
    found = module.names.lookup(node.id, node) if isinstance(node, ast.Name) else None
    given = [each.value for each in found[1] if each.value is not None] if found else []
    if any(isinstance(each, (ast.List, ast.Tuple, ast.Dict, *COMPREHENSIONS)) for each in given):
        return False
    if found and given and len(given) == len(found[1]):
        texts = [isinstance(each, ast.Call) and is_text(module, each) for each in given]
        if all(texts):
            return True
    name = getattr(node, "attr", getattr(node, "id", ""))
    return module.sinks.names.get(name) == DEVICE
