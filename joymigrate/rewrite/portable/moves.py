"""`x.cuda(…)` as `x.to(…)`."""

from __future__ import annotations

import ast

from joymigrate.rewrite.module import Module
from joymigrate.rewrite.portable.words import place

MAY_BE_NONE = "`.cuda(None)` means the current card, `.to(None)` moves nothing"


def write_move(
    module: Module, call: ast.Call, token: tuple[int, int]
) -> tuple[list[tuple[int, int, str]] | None, str | None]:
    """`.cuda(…)` as `.to(…)`: the edits, and why they need review. A number is a card of the
    accelerator at hand for torch 2.5 and later."""
    edits = [(*token, "to")]
    given = next((each.value for each in call.keywords if each.arg == "device"), None)
    given = call.args[0] if call.args else given
    if (
        len(call.args) > 1
        or isinstance(given, ast.Starred)
        or any(k.arg is None for k in call.keywords)
    ):
        return None, None
    if given is None:
        at = module.source.text.index("(", module.span(call.func)[1]) + 1
        return [*edits, (at, at, place(module, call) + (", " if call.keywords else ""))], None
    if isinstance(given, ast.Constant) and given.value is None:
        return [*edits, (*module.span(given), place(module, call))], None
    name = getattr(given, "attr", getattr(given, "id", ""))
    return edits, MAY_BE_NONE if may_be_none(module, given, name) else None


def may_be_none(module: Module, value: ast.expr, name: str) -> bool:
    """Whether a parameter around a place has None for its default, or the name is given None."""
    around = module.names.enclosing(value, (ast.FunctionDef, ast.AsyncFunctionDef))
    function = around.args if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    if function is not None and isinstance(value, ast.Name):
        named = [*function.posonlyargs, *function.args]
        defaults = zip(reversed(named), reversed(function.defaults), strict=False)
        later = zip(function.kwonlyargs, function.kw_defaults, strict=True)
        if any(one.arg == name and is_none(default) for one, default in (*defaults, *later)):
            return True
    return any(
        is_none(each.value)
        and any(name == getattr(t, "attr", getattr(t, "id", "")) for t in each.targets)
        for each in module.names.nodes[ast.Assign]
    )


def is_none(node: ast.expr | None) -> bool:
    """A literal None."""
    return isinstance(node, ast.Constant) and node.value is None
