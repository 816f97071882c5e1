"""Errors recognised by the words of the old platform: `"CUDA out of memory" in str(error)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
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
        if looked_for(node):
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
