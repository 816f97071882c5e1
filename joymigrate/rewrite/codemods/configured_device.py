"""A device that a configuration of the project names, where torch is given it: `cfg["device"]`.

The file keeps the origin's word, which the origin's machines read too; the agnostic style
translates it at torch's own call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Style
from joymigrate.rewrite.device_texts import last_name
from joymigrate.rewrite.module import Module

PLACED = ("device", "map_location")  # keywords of torch's functions that take a device


def find(module: Module) -> Iterator[Finding]:
    """Findings for such values in calls of `torch.device` and `.to`, and in `device=` of torch."""
    keys = module.context.configured
    if module.context.style is not Style.AGNOSTIC or not keys or module.vocabulary.same_device:
        return
    held = find_held(module)
    for call in module.names.nodes[ast.Call]:
        for given in find_given(module, call):
            if isinstance(
                given, ast.IfExp
            ):  # `cfg["device"] if torch.cuda.is_available() else "cpu"`
                given = next((g for g in (given.body, given.orelse) if read_key(g) in keys), given)
            named = isinstance(given, ast.Name) and given.id in held
            if (named or read_key(given) in keys) and module.guarded(call) is None:
                start, end = module.span(given)
                edits = [(start, start, f"{module.helper}.device("), (end, end, ")")]
                yield module.find("JM121", given, edits=edits, needs="helper")


def find_given(module: Module, call: ast.Call) -> Iterator[ast.expr]:
    """What a call of torch is given as a device."""
    dotted = module.names.dotted(call.func)
    moved = isinstance(call.func, ast.Attribute) and call.func.attr == "to" and dotted is None
    if call.args and (moved or dotted == "torch.device"):
        yield call.args[0]
    if moved or (dotted or "").startswith("torch."):
        yield from (word.value for word in call.keywords if word.arg in PLACED)


def find_held(module: Module) -> set[str]:
    """Names of a file that hold nothing but such a value, whatever their scope."""
    keys, nodes = module.context.configured, module.names.nodes
    held: dict[str, int] = {}
    for one in nodes[ast.Assign]:
        target = one.targets[0]
        if len(one.targets) == 1 and isinstance(target, ast.Name) and read_key(one.value) in keys:
            held[target.id] = held.get(target.id, 0) + 1
    bound = [n.id for n in nodes[ast.Name] if isinstance(n.ctx, ast.Store) and n.id in held]
    taken = {
        each.arg
        for kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        for one in nodes[kind]
        for each in (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs)
    }
    return {name for name, times in held.items() if bound.count(name) == times} - taken


def read_key(node: ast.expr) -> str:
    """The key of a configuration that an expression reads: `cfg["device"]`, `cfg.run.device`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        first = node.args[0] if node.func.attr == "get" and node.args else None
        return str(getattr(first, "value", ""))
    if isinstance(node, ast.Subscript):
        return str(getattr(node.slice, "value", ""))
    return last_name(node) if isinstance(node, ast.Attribute) else ""
