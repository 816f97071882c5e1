"""Command lines inside of one string: `"python train.py --device cuda".split()`.

Only options that are a device or a backend by their name are looked at, and only in strings that
run a program or begin with an option. In the agnostic style they are reported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.device_places import SHOWN, TALK
from joymigrate.rewrite.expressions import called_name
from joymigrate.rewrite.flow_sinks import DEVICE
from joymigrate.rewrite.module import Module

PROGRAM = re.compile(
    r"\b(?:python[\d.]*|torchrun|accelerate|deepspeed)\b|\.py\b|\{\w+\.executable\}"
)

UNKNOWN = "an option of a command line in a string; whether it takes a device is not visible here"


def find(module: Module) -> Iterator[Finding]:
    """Findings for values of options in strings that are command lines."""
    words = module.vocabulary
    if words.same_device or "--" not in module.source.text:
        return
    value = rf"(?:{re.escape(words.device)}(?![\w.-])|(?i:{re.escape(words.backend)})(?![\w.:-]))"
    given = re.compile(rf"--(?P<name>[A-Za-z][\w-]*)(?:=|[ ]+)(?P<value>{value})")
    if not given.search(module.source.text):
        return
    for node in (*module.names.nodes[ast.Constant], *module.names.nodes[ast.JoinedStr]):
        if not is_command(module, node, given):
            continue
        start, end = module.span(node)
        for match in given.finditer(module.source.text, start, end):
            kind = module.sinks.names.get(match["name"].replace("-", "_"))
            device = match["value"] == words.device
            card = device and module.source.text[match.end() : match.end() + 1] == ":"
            if kind is None and card:
                yield module.find("JM122", match.span("value"), tier=Tier.REPORT, reason=UNKNOWN)
            if kind is None or (kind == DEVICE) is not device:
                continue
            span, rule = match.span("value"), "JM120" if device else "JM130"
            guard = module.guarded(node)
            if module.context.style is not Style.DIRECT or guard is not None:
                reason = guard or "a command line in a string"
                yield module.find(rule, span, tier=Tier.REPORT, reason=reason)
                continue
            to = words.string(match["value"])
            yield module.find(rule, span, edits=[(*span, to)], needs=need(module))


def is_command(module: Module, node: ast.Constant | ast.JoinedStr, given: re.Pattern[str]) -> bool:
    """Whether a string is a command line with one of the values, and no text for people."""
    value = node.value if isinstance(node, ast.Constant) else module.text(node)
    if not isinstance(value, str) or " " not in value or not given.search(value):
        return False
    parent = getattr(node, "parent", None)
    if node in module.names.docstrings or isinstance(parent, (ast.Expr, ast.JoinedStr)):
        return False
    if isinstance(parent, ast.keyword) and parent.arg in SHOWN:
        return False
    if called_name(parent) in TALK:
        return False
    return value.lstrip("fF\"' ").startswith("--") or PROGRAM.search(value) is not None
