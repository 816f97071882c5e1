"""`x.to(0)`, `device=1`: a device given as a number. Only reported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.device_texts import last_name
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.option_calls import OPTION_CALLS, option_name

KEYWORDS = ("device", "map_location", "device_map")
NUMBERED = re.compile(r"rank|idx|index|gpu|^i$|_id$|^local")
SPOKEN = re.compile(r"(?:gpu|device|local)$")  # a number, or a text: `gpu`, `local_device`
COUNTING = ("int", "range", "get_rank", "current_device", "device_count")  # types and calls


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
    """Whether a name is that of a card's number, and no text of the file is its value; where the
    name may be that of a text as well, whether the file gives it a number."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or not is_number(node):
        return False
    key = module.flow.key(node)
    if key is None or any(key in ends for ends in module.flow.literals.values()):
        return False
    name = getattr(node, "attr", getattr(node, "id", ""))
    return not SPOKEN.search(name) or any(map(counts, find_given(module, node, name)))


def find_given(module: Module, node: ast.expr, name: str) -> Iterator[ast.expr | None]:
    """What gives a name its value or says its type: bindings, and the options of the file."""
    found = module.names.lookup(name, node) if isinstance(node, ast.Name) else None
    for binding in found[1] if found is not None else ():
        yield binding.value
        yield getattr(binding.node, "annotation", None)
    for call in module.names.nodes[ast.Call]:
        keywords = {each.arg: each.value for each in call.keywords}
        defines = last_name(call.func)
        if defines in OPTION_CALLS and name == option_name(
            call, keywords, clicks=defines in ("option", "argument")
        ):
            yield from (keywords.get("default"), keywords.get("type"))


def counts(value: ast.expr | None) -> bool:
    """Whether a value is a number, the type of one, or a call that gives numbers."""
    if value is None:
        return False
    called = value.func if isinstance(value, ast.Call) else value
    return number(value) or last_name(called) in COUNTING
