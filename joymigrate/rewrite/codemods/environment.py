"""Environment variables in Python: `os.environ["CUDA_VISIBLE_DEVICES"]`, `getenv`, `env={…}`.

The string is the whole name of a variable that belongs to the origin, so what it means is not in
doubt wherever it stands; talk about it (messages, help texts) is longer than the name alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.chips import NameAdvice
from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.readers._migration_map import migration_map


def find(module: Module) -> Iterator[Finding]:
    """Findings for names of the origin's environment variables."""
    table = migration_map(module.context)
    for node in module.names.nodes[ast.Constant]:
        value = node.value
        if not isinstance(value, str) or not value.isupper() or node in module.names.docstrings:
            continue
        known = table.variable(value) if value.replace("_", "").isalnum() else None
        if known is None or is_text(node):
            continue
        yield from variable(module, node, value, *known)
    for node in module.names.nodes[ast.keyword]:
        if node.arg and node.arg.isupper():
            known = table.variable(node.arg)
            if known is not None:
                yield from keyword(module, node, *known)


def is_text(node: ast.AST) -> bool:
    """Whether a string is a statement of its own or part of an f-string: text, not a name."""
    return isinstance(getattr(node, "parent", None), (ast.Expr, ast.JoinedStr))


def variable(
    module: Module, node: ast.Constant, name: str, rule: str, advice: NameAdvice
) -> Iterator[Finding]:
    """A variable's name as a string."""
    reason = advice.note or None
    if advice.to is None or advice.to == name or advice.tier is Tier.REPORT:
        yield module.find(rule, node, tier=Tier.REPORT, reason=reason or "the name stays as it is")
        return
    guard = module.guarded(node) or set_beside(module, advice.to)
    guard = guard or for_another_reader(module, node, advice.to)
    if guard is not None:
        yield module.find(rule, node, tier=Tier.REPORT, reason=guard)
        return
    start, end = module.span(node)
    text = module.source.text[start:end]
    if text[1:-1] != name:
        yield module.find(rule, node, tier=Tier.REPORT, reason="written in pieces")
        return
    if module.context.style is Style.AGNOSTIC:
        yield agnostic(module, node, name, rule, advice)
        return
    edits = [(start + 1, end - 1, advice.to)]
    yield module.find(rule, node, edits=edits, tier=advice.tier, reason=reason)


def set_beside(module: Module, to: str) -> str | None:
    """A reason when the module already deals with the target's variable."""
    for node in module.names.nodes[ast.Constant]:
        if node.value == to:
            return Text("this file already deals with {to}", to=to)
    return None


def for_another_reader(module: Module, node: ast.Constant, to: str) -> str | None:
    """A reason when the module is for another framework, or a tool of the origin's, and not torch.

    `os.environ["CUDA_VISIBLE_DEVICES"] = "-1"` keeps TensorFlow off the device; on the target it
    has none to be kept off, and torch in the same process would lose it. What a parser of
    `nvidia-smi` asks of it are the numbers in that tool's table; what it sets is for others.
    """
    text = module.source.text
    named = re.search(r"^[ \t]*(?:import|from)[ \t]+(tensorflow|jax|paddle)\b", text, re.M)
    if re.search(r"\bimport torch\b|\bfrom torch\b" if named is None else r"\btorch\b", text):
        return None
    uses = [each for each in module.names.nodes[ast.Constant] if each.value == node.value]
    asked = named is None and all(map(is_read, uses))
    tools = migration_map(module.context).tools if asked else ()
    runs = next((name for name in tools if re.search(rf"[\"']{re.escape(name)}\b", text)), None)
    name = named[1] if named is not None else runs
    return (
        Text("this file is for {name}, which does not read {to}", name=name, to=to)
        if name
        else None
    )


def is_read(node: ast.Constant) -> bool:
    """Whether a variable is read by its name: `environ["NAME"]`, `environ.get("NAME")`."""
    place = getattr(node, "parent", None)
    if isinstance(place, ast.Call):
        return getattr(place.func, "attr", "") in ("get", "getenv")
    return isinstance(place, ast.Subscript) and isinstance(place.ctx, ast.Load)


def agnostic(
    module: Module, node: ast.Constant, name: str, rule: str, advice: NameAdvice
) -> Finding:
    """Both platforms' variables get the value; a read asks for the one that holds here."""
    subscript = getattr(node, "parent", None)
    assign = getattr(subscript, "parent", None)
    if (
        isinstance(subscript, ast.Subscript)
        and isinstance(assign, ast.Assign)
        and assign.targets == [subscript]
    ):
        start, end = module.span(subscript)
        node_start, node_end = module.span(node)
        quote = module.source.text[node_start]
        text = module.source.text
        twin = f"{text[start:node_start]}{quote}{advice.to}{quote}{text[node_end:end]}"
        edits = [(end, end, f" = {twin}")]
        return module.find(
            rule, subscript, after=f"{text[start:end]} = {twin}", edits=edits, tier=advice.tier
        )
    holder = removed_from(node)
    if holder is not None:
        statement, owner = holder
        start, end = module.span(statement)
        quote = module.source.text[module.span(node)[0]]
        twin = f"; {module.text(owner)}.pop({quote}{advice.to}{quote}, None)"
        # Another mapping's keys are the program's own: they move together or not at all.
        tier = advice.tier if "env" in module.text(owner).lower() else Tier.UNSAFE
        return module.find(rule, statement, edits=[(end, end, twin)], tier=tier)
    if rule == "JM170" and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        written = f"{module.helper}.visible_devices_variable()"
        return module.find(
            rule, node, edits=[(*module.span(node), written)], tier=Tier.UNSAFE, needs="helper"
        )
    return module.find(
        rule,
        node,
        tier=Tier.REPORT,
        reason=Text("{chip} reads {to}", chip=module.context.chip.name, to=advice.to),
    )


def removed_from(node: ast.Constant) -> tuple[ast.stmt, ast.expr] | None:
    """The statement that takes a variable away, and the mapping that it is taken from.

    `os.environ.pop("NAME", …)` and `del os.environ["NAME"]`; None for any other use.
    """
    place = getattr(node, "parent", None)
    statement = getattr(place, "parent", None)
    if isinstance(place, ast.Subscript) and isinstance(statement, ast.Delete):
        return (statement, place.value) if statement.targets == [place] else None
    if not isinstance(place, ast.Call) or not isinstance(statement, ast.Expr):
        return None
    popped = isinstance(place.func, ast.Attribute) and place.func.attr == "pop"
    return (statement, place.func.value) if popped and node in place.args[:1] else None  # type: ignore[attr-defined]


def keyword(module: Module, node: ast.keyword, rule: str, advice: NameAdvice) -> Iterator[Finding]:
    """`dict(os.environ, CUDA_VISIBLE_DEVICES="0")`."""
    assert node.arg is not None
    start, _ = module.span(node)
    span = (start, start + len(node.arg))
    if advice.to is None or advice.to == node.arg or advice.tier is Tier.REPORT:
        yield module.find(rule, span, tier=Tier.REPORT, reason=advice.note or None)
        return
    if module.context.style is Style.AGNOSTIC:
        yield module.find(
            rule, span, tier=Tier.REPORT, reason=Text("add {to} with the same value", to=advice.to)
        )
        return
    yield module.find(rule, span, edits=[(*span, advice.to)], tier=advice.tier)
