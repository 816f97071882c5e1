"""`x.to(0)`, `device=1`: a device given as a number. Only reported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module

KEYWORDS = ("device", "map_location", "device_map")
NUMBERED = re.compile(r"rank|idx|index|gpu|^i$|_id$|^local")


def find(module: Module) -> Iterator[Finding]:
    """Findings for literal numbers where a device is expected."""
    if module.vocabulary.same_device:
        return
    for call in module.names.nodes[ast.Call]:
        for keyword in call.keywords:
            if keyword.arg not in KEYWORDS:
                continue
            given = keyword.value
            for value in given.values if isinstance(given, ast.Dict) else [given]:
                if number(value):
                    yield module.find("JM124", value, tier=Tier.REPORT)
        first = call.args[0] if call.args else None
        if first is None:
            continue
        made = module.names.dotted(call.func) == "torch.device"
        moved = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
        alone = number(first) and (made or (moved and not call.keywords))
        if alone or (made and len(call.args) == 1 and is_counted(module, first)):
            yield module.find("JM124", first, tier=Tier.REPORT)


def number(node: ast.expr) -> bool:
    """Whether an expression is a whole number (`True` is not)."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def is_number(node: ast.expr) -> bool:
    """Whether an expression is a card's number by its value or its name."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return number(node) or bool(NUMBERED.search(name)) or isinstance(node, ast.BinOp)


def is_counted(module: Module, node: ast.expr) -> bool:
    """Whether a name is that of a card's number, and no text of the file is its value."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or not is_number(node):
        return False
    key = module.flow.key(node)
    return key is not None and not any(key in ends for ends in module.flow.literals.values())
