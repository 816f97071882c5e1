"""Code that can't be read: attributes by name, code in strings. Paths of mocks are moved."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.codemods.device_names import REPLACING, asked_by_name
from joymigrate.rewrite.device_places import annotation
from joymigrate.rewrite.expressions import called_name
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
    for node, value in module.spoken:
        parent = getattr(node, "parent", None)
        if isinstance(parent, (ast.JoinedStr, ast.Expr)) or words.typed_tensor.match(value):
            continue
        replaced = rewrite_mock(module, node)
        if replaced is not None:
            yield replaced
            continue
        if inside.search(value) and code_like(value):
            written = rewrite_annotation(module, node)
            if written is not None:
                yield written
                continue
            yield module.find("JM900", node, tier=Tier.REPORT, reason=place(node))


def rewrite_annotation(module: Module, node: ast.Constant) -> Finding | None:
    """A type in quotes (`stream: "torch.cuda.Stream"`), in the target's words; None for others."""
    words = module.vocabulary
    start, end = module.span(node)
    text = module.source.text[start:end]
    root = words.module.partition(".")[0]
    known = module.names.lookup(root, node)
    if module.context.style is not Style.DIRECT or not annotation(node) or text[1:-1] != node.value:
        return None
    if known is None or [b.dotted for b in known[1]] != [root] or module.guarded(node):
        return None
    edits = []
    for match in re.finditer(rf"(?<![\w.]){re.escape(words.module)}\.(\w+)", text):
        advice = words.name(match[1])
        if advice.to != match[1] or advice.tier is not Tier.SAFE:
            return None
        at = start + match.start(1) - 1
        edits.append((at - len(words.device), at, words.to_device))
    return module.find("JM101", node, edits=edits, needs="package") if edits else None


def rewrite_mock(module: Module, node: ast.Constant) -> Finding | None:
    """The path of what a test replaces (`patch("torch.cuda.is_available")`), in the target's words.

    It goes with the code that it replaces: names that have no form on the target stay. None for
    any other string.
    """
    words = module.vocabulary
    parent = getattr(node, "parent", None)
    value = node.value if isinstance(node.value, str) else ""
    called = called_name(parent)
    names = r"(\w+)[\w.]*" if called != "multiple" else "()"
    dot = r"\." if called != "multiple" else ""
    found = re.fullmatch(rf"([\w.]+\.)?{re.escape(words.module)}{dot}{names}", value)
    if found is None or not isinstance(parent, ast.Call) or node not in parent.args[:1]:
        return None
    start, end = module.span(node)
    text = module.source.text[start:end]
    if called not in ("patch", "multiple", *REPLACING) or text[1:-1] != value:
        return None
    if module.context.style is Style.SHIM or module.guarded(node):
        return None
    replaced = [found[2]] if found[2] else [each.arg or "" for each in parent.keywords]
    moves = (words.name(name) for name in replaced if name not in ("spec", "create", "new"))
    if any(advice.to != advice.name or advice.tier is not Tier.SAFE for advice in moves):
        return None
    at = start + 1 + found.start(2) - len(dot[1:]) - len(words.device)
    if module.context.style is Style.DIRECT:
        edits = [(at, at + len(words.device), words.to_device)]
        return module.find("JM101", node, edits=edits, needs="package")
    device = f"{{{module.helper}.accelerator()}}"
    edits = [(start, start, "f"), (at, at + len(words.device), device)]
    return module.find("JM101", node, edits=edits, needs="helper")


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
        if asked_by_name(module, call):
            return  # a site of its own: the module's name is rewritten
        yield module.find("JM900", call, tier=Tier.REPORT, reason="an attribute looked up by name")
        return
    if dotted == "torch" and not isinstance(call.args[1], ast.Constant):
        yield module.find("JM900", call, tier=Tier.REPORT, reason="an attribute looked up by name")
