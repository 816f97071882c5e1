"""Code that can't be read: attributes by name, code in strings, mock paths. Only reported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module

LOOKUPS = ("getattr", "hasattr", "setattr", "delattr")


def find(module: Module) -> Iterator[Finding]:
    """Findings for what a reader of the code could not resolve either."""
    words = module.vocabulary
    if words.same_device:
        return
    for call in module.names.nodes[ast.Call]:
        yield from lookup(module, call)
    inside = re.compile(rf"(?<![\w.]){re.escape(words.module)}\.\w+|\.{re.escape(words.device)}\(")
    for node in module.names.nodes[ast.Constant]:
        if not isinstance(node.value, str) or node in module.names.docstrings:
            continue
        parent = getattr(node, "parent", None)
        if isinstance(parent, (ast.JoinedStr, ast.Expr)) or words.typed_tensor.match(node.value):
            continue
        if inside.search(node.value) and code_like(node.value):
            yield module.find("JM900", node, tier=Tier.REPORT, reason=place(node))


def code_like(text: str) -> bool:
    """Whether a string is code or a dotted path rather than prose."""
    if re.fullmatch(r"[\w.]+", text):
        return True
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def place(node: ast.AST) -> str:
    """What kind of string it is."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.Call):
        name = getattr(parent.func, "attr", getattr(parent.func, "id", ""))
        if name in ("patch", "setattr", "object", "delattr", "patch_object"):
            return "a path that a test replaces"
    return "code in a string"


def lookup(module: Module, call: ast.Call) -> Iterator[Finding]:
    """`getattr(torch, name)` and the like: which attribute is decided at run time."""
    name = getattr(call.func, "id", None)
    if name not in LOOKUPS or len(call.args) < 2:
        return
    dotted = module.names.dotted(call.args[0])
    if dotted == module.vocabulary.module:
        yield module.find("JM900", call, tier=Tier.REPORT, reason="an attribute looked up by name")
        return
    if dotted == "torch" and not isinstance(call.args[1], ast.Constant):
        yield module.find("JM900", call, tier=Tier.REPORT, reason="an attribute looked up by name")
