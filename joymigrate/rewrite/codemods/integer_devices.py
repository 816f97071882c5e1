"""`x.to(0)`, `device=1`: a device given as a number. Only reported."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module

KEYWORDS = ("device", "map_location", "device_map")


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
        if first is not None and number(first) and takes_device(module, call):
            yield module.find("JM124", first, tier=Tier.REPORT)


def number(node: ast.expr) -> bool:
    """Whether an expression is a whole number (`True` is not)."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def takes_device(module: Module, call: ast.Call) -> bool:
    """Whether the first argument of a call is a device: `torch.device(…)`, `x.to(…)`."""
    if module.names.dotted(call.func) == "torch.device":
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr == "to" and not call.keywords
