"""Command lines inside of one string: `"CUDA_VISIBLE_DEVICES=0 python train.py --device cuda"`.

Of options only those that are a device or a backend by their name are looked at, and only in
strings that run a program or begin with an option. In the agnostic style they are reported.
Variables are set in front of a program, or in what a call hands to the shell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.chips import NameAdvice
from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.codemods.environment import set_beside
from joymigrate.rewrite.codemods.patterns import in_runner
from joymigrate.rewrite.device_places import SHOWN, TALK
from joymigrate.rewrite.expressions import called_name
from joymigrate.rewrite.flow_sinks import DEVICE
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.readers._migration_map import migration_map

PROGRAM = re.compile(
    r"\b(?:python[\d.]*|torchrun|accelerate|deepspeed)\b|\.py\b|\{\w+\.executable\}"
)

CARDS = re.compile(r"(?:\d+|\{[^{}]*\})(?:,(?:\d+|\{[^{}]*\}))*")
UNKNOWN = "an option of a command line in a string; whether it takes a device is not visible here"


VARIABLE = re.compile(r"(?<![\w$./{-])(?P<name>[A-Z][A-Z0-9_]+)=(?!=)(?P<value>[\w{}.,:\[\]-]*)")
# What stands before a variable that a shell sets for a command: other variables, a command's end.
FRONT = re.compile(
    r"""\w*(?:'''|\"\"\"|['"])(?:[^'"]*(?:[;&|]|(?<!\\)(?:\n|\\n))[\s\\]*)?"""
    r"""\s*(?:(?:export|env|sudo|time)\s+)*(?:\w+=[^\s'"]*\s+)*"""
)
READER = "inside text whose reader is not known"
UNREADABLE = "the value is not a list of card numbers"


def find(module: Module) -> Iterator[Finding]:
    """Findings for variables and values of options in strings that are command lines."""
    yield from find_variables(module)
    yield from find_options(module)


def find_variables(module: Module) -> Iterator[Finding]:
    """Variables of the origin that a command line sets."""
    text, known = module.source.text, migration_map(module.context)
    if not any(known.variable(match["name"]) for match in VARIABLE.finditer(text)):
        return
    for node in (*module.names.nodes[ast.Constant], *module.names.nodes[ast.JoinedStr]):
        run = in_runner(module, node)
        if not (run and is_text(module, node)) and not is_command(module, node, VARIABLE):
            continue
        if not run and not PROGRAM.search(module.text(node)):
            continue
        for match in VARIABLE.finditer(text, *module.span(node)):
            advice = known.variable(match["name"])
            told = advice is not None and f"{advice[1].to}=" in module.text(node)
            if advice is not None and not told:
                yield variable(module, node, match, *advice, READER if not run else None)


def variable(
    module: Module,
    node: ast.expr,
    match: re.Match[str],
    rule: str,
    advice: NameAdvice,
    reason: str | None,
) -> Finding:
    """One variable that a command line sets: under the target's name, or under both."""
    span, to = match.span("name"), advice.to
    guard = module.guarded(node) or (set_beside(module, to) if to else advice.note)
    if guard is None and to == match["name"]:
        guard = advice.note or "the name stays as it is"
    if guard or to is None or advice.tier is Tier.REPORT:
        return module.find(rule, span, tier=Tier.REPORT, reason=guard or advice.note or None)
    agnostic = module.context.style is Style.AGNOSTIC
    if not is_set(module, node, match) or (agnostic and not is_repeatable(module, node, match)):
        told = Text("{chip} reads {to}", chip=module.context.chip.name, to=to)
        return module.find(rule, span, tier=Tier.REPORT, reason=told)
    if rule == "JM170" and not CARDS.fullmatch(match["value"]):
        reason = UNREADABLE
    if agnostic:
        span, end = match.span(), match.end()
        edits = [(end, end, f" {to}={match['value']}")]
    else:
        edits = [(*span, to)]
    tier = Tier.UNSAFE if reason else advice.tier
    return module.find(rule, span, edits=edits, tier=tier, reason=reason or advice.note or None)


def is_set(module: Module, node: ast.expr, match: re.Match[str]) -> bool:
    """Whether a shell sets the variable for a command, and no text, program or option names it."""
    start, _ = module.span(node)
    if module.names.enclosing(node, (ast.List, ast.Tuple)) is not None:
        return False
    if " " not in module.text(node) and not isinstance(getattr(node, "parent", None), ast.BinOp):
        return False  # an argument by itself
    return FRONT.fullmatch(module.source.text, start, match.start()) is not None


def is_repeatable(module: Module, node: ast.expr, match: re.Match[str]) -> bool:
    """Whether a variable's value is read to its end and means the same when written twice."""
    value, after = match["value"], module.source.text[match.end() : match.end() + 1]
    counted = isinstance(node, ast.Constant) and re.search(r"\{[}!:]", value)
    whole = bool(value) and value.count("{") == value.count("}")
    return whole and not counted and (after.isspace() or after in (";", "&"))


def is_text(module: Module, node: ast.expr) -> bool:
    """Whether a node is a text by itself and no part of a longer one."""
    parent = getattr(node, "parent", None)
    known = isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)
    return known and not isinstance(parent, (ast.JoinedStr, ast.Expr))


def find_options(module: Module) -> Iterator[Finding]:
    """Devices and backends that options of a command line name."""
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
            yield module.find(rule, span, edits=[(*span, to)], needs=need(module, node))


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
