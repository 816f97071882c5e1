"""Requirements as strings in setup.py: `install_requires=[…]`, extras, and lists they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.readers._packages import RULE, package_advice

ARGUMENTS = frozenset(("install_requires", "setup_requires", "tests_require", "extras_require"))


def find(module: Module) -> Iterator[Finding]:
    """Findings for the packages that a setup.py asks for."""
    if module.source.path.rpartition("/")[2] != "setup.py":
        return
    seen: set[ast.AST] = set()
    for keyword in module.names.nodes[ast.keyword]:
        if keyword.arg not in ARGUMENTS:
            continue
        for node in strings(module, keyword.value):
            if node not in seen:
                seen.add(node)
                yield from requirement(module, node)


def strings(module: Module, value: ast.expr) -> Iterator[ast.Constant]:
    """Strings of a list or mapping, also of one that is assigned to a name in this file."""
    if isinstance(value, ast.Name):
        for assign in module.names.nodes[ast.Assign]:
            if any(isinstance(t, ast.Name) and t.id == value.id for t in assign.targets):
                yield from literal_strings(assign.value)
        return
    yield from literal_strings(value)


def literal_strings(value: ast.AST) -> Iterator[ast.Constant]:
    """Strings that stand in a literal as items; the keys of a mapping are names of extras."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value
    elif isinstance(value, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.BinOp, ast.IfExp)):
        for item in value.values if isinstance(value, ast.Dict) else ast.iter_child_nodes(value):
            yield from literal_strings(item)


def requirement(module: Module, node: ast.Constant) -> Iterator[Finding]:
    """One requirement: rewritten inside its quotes, with its companion as a further item."""
    change = package_advice(str(node.value), module.context)
    if change is None:
        return
    source = module.source
    start, end = module.span(node)
    text = source.text[start:end]
    also = [each for each in change.also if re.split(r"[=<>~! ;]", each)[0] not in source.text]
    if change.after == node.value and not also:
        return
    plain = text[1:-1] == node.value and "\n" not in text
    in_list = isinstance(getattr(node, "parent", None), (ast.List, ast.Tuple, ast.Set))
    if change.after is None or not plain or (also and not in_list):
        more = Text("; add {also}", also=", ".join(also)) if also else ""
        message = Text.of(module.rule(RULE).message).filled(before=text)
        yield module.find(RULE, node, reason=Text.of(change.reason) + more, message=message)
        return
    quote = text[0]
    head = source.text[source.starts[source.position(start)[0] - 1] : start]
    between = " " if head.strip() else source.newline + head
    after = f",{between}".join(f"{quote}{each}{quote}" for each in (change.after, *also))
    yield module.find(
        RULE,
        node,
        edits=[(start, end, after)],
        tier=change.tier,
        reason=change.reason,
        message=Text.of(module.rule(RULE).message).filled(before=text),
    )
