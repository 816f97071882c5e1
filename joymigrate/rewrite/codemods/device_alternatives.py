r"""Patterns that list the devices which a text may name: `r"^(cpu|mps|cuda(:\d+)?)$"`.

The chip's name is added beside the origin's, in both styles, as with the choices of an option.
Patterns of `re` and those that a field is checked by (`Field(pattern=…)`); not those kept apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.model import Finding, Style
from joymigrate.rewrite.module import Module

KEYWORDS = ("pattern", "regex")
LITERAL = re.compile(r"[rRuUbB]{0,2}(['\"])(?!\1).*\1", re.S)


def find(module: Module) -> Iterator[Finding]:
    """Findings for patterns with the origin's device among other ones."""
    words = module.vocabulary
    if words.same_device or module.context.style is Style.SHIM:
        return
    for node, value in module.spoken:
        if words.to_device in value or not checks(node):
            continue
        start, end = module.span(node)
        text = module.source.text[start:end]
        found = alternative(text, words.device) if LITERAL.fullmatch(text) else None
        if found is None or module.guarded(node) is not None:
            continue
        first, last = found
        other = text[first:last].replace(words.device, words.to_device)
        edit = (start + first, start + last, f"{text[first:last]}|{other}")
        yield module.find("JM120", node, edits=[edit])


def checks(node: ast.expr) -> bool:
    """Whether a text is a pattern: the first argument of a function of `re`, or of a field."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.keyword):
        return parent.arg in KEYWORDS
    func = parent.func if isinstance(parent, ast.Call) and node in parent.args[:1] else None
    return isinstance(func, ast.Attribute) and getattr(func.value, "id", "") == "re"


def alternative(text: str, device: str) -> tuple[int, int] | None:
    """Where the device stands in a pattern as one of several, with the host beside it."""
    named = re.search(rf"(?<=[(|:^>'\"]){device}(?![\w-])", text)
    if named is None or not re.search(r"(?<=[(|:^>'\"])cpu(?=[|)('\"])", text):
        return None
    at, depth = named.end(), 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "(":
            depth += 1
        elif not depth and (text[at] in "|)" or at == len(text) - 1):
            break
        elif text[at] == ")":
            depth -= 1
        at += 1
    around = text[named.start() - 1] + text[at : at + 1]
    return (named.start(), at) if "|" in around else None
