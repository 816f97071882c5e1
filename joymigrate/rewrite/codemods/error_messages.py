"""Errors recognised by the words of the old platform: `"CUDA out of memory" in str(error)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.device_texts import inside_fstring
from joymigrate.rewrite.module import Module

READERS = ("startswith", "endswith", "find", "count", "search", "match", "fullmatch")


def find(module: Module) -> Iterator[Finding]:
    """Findings for texts of errors that a program looks for."""
    words = module.vocabulary
    name = words.device.upper()
    if words.same_device or f"{name} " not in module.source.text:
        return
    spoken = re.compile(rf"\b{name} [a-z]\w+ ?", re.ASCII)
    for node in module.names.nodes[ast.Constant]:
        if not isinstance(node.value, str) or not spoken.search(node.value):
            continue
        written = memory_error(module, node) if is_compared(node) else None
        if written is not None and module.guarded(node) is None:
            yield module.find(
                "JM108",
                node,
                tier=Tier.SAFE,
                message="an error is recognised by the words of the old platform",
                edits=[(*module.span(node), written)],
                needs=need(module, node),
            )
        elif looked_for(node):
            yield module.find(
                "JM108",
                node,
                tier=Tier.REPORT,
                message="an error is recognised by the words of the old platform",
                reason=Text(
                    "the same error has another text on {chip}; look for the part without the "
                    "platform's name, or for the exception's class",
                    chip=module.context.chip.name,
                ),
            )


def memory_error(module: Module, node: ast.Constant) -> str | None:
    """`"CUDA out of memory"` as the target says it; None where that is not known."""
    ours = str(module.context.origin.api.get("memory_error") or "")
    theirs = str(module.context.chip.api.get("memory_error") or "")
    text = module.text(node)
    if not ours or not theirs or text[1:-1].rstrip(".") != ours or text[0] not in "\"'":
        return None
    if module.context.style is Style.DIRECT:
        return text.replace(ours, theirs)
    name = module.vocabulary.to_device.upper()
    if module.context.style is not Style.AGNOSTIC or not theirs.startswith(f"{name} "):
        return None
    if inside_fstring(module, node):
        return None
    # Where nothing is found the helper names the origin, so that its own errors are still known.
    rest = theirs.removeprefix(name) + text[len(ours) + 1 : -1]
    return f"{module.helper}.accelerator().upper() + {text[0]}{rest}{text[0]}"


def is_compared(node: ast.Constant) -> bool:
    """Whether a text is looked for in an error's own: `"…" in str(error)`."""
    parent = getattr(node, "parent", None)
    return (
        isinstance(parent, ast.Compare)
        and parent.left is node
        and isinstance(parent.ops[0], (ast.In, ast.NotIn))
    )


def error_text(module: Module, node: ast.expr) -> bool:
    """Whether an expression is the text of an error that was caught: `str(e).lower()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    while isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("str", "repr"):
        node = node.args[0] if node.args else node.func
    name = node.id if isinstance(node, ast.Name) else None
    at = module.names.enclosing(node, (ast.ExceptHandler,))
    while at is not None and at.name != name:
        at = module.names.enclosing(at, (ast.ExceptHandler,))
    return name is not None and at is not None


def looked_for(node: ast.Constant) -> bool:
    """Whether a string is searched for in another one."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.Compare):
        return True
    if isinstance(parent, ast.keyword):
        return parent.arg == "match"
    if not isinstance(parent, ast.Call) or node not in parent.args[:1]:
        return False
    return getattr(parent.func, "attr", "") in READERS
