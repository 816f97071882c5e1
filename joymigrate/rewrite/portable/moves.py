"""`x.cuda(…)` as `x.to(…)`."""

from __future__ import annotations

import ast

from joymigrate.rewrite.module import Module
from joymigrate.rewrite.option_calls import OPTION_CALLS, option_name
from joymigrate.rewrite.portable.words import place

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
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
    """Whether a value is None by default, as a parameter around it, an option of the file or by an
    assignment, and no condition around the place says that it is something."""
    if is_something(value):
        return False
    around = module.names.enclosing(value, (ast.FunctionDef, ast.AsyncFunctionDef))
    function = around.args if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    if function is not None and isinstance(value, ast.Name):
        named = [*function.posonlyargs, *function.args]
        defaults = zip(reversed(named), reversed(function.defaults), strict=False)
        later = zip(function.kwonlyargs, function.kw_defaults, strict=True)
        if any(one.arg == name and is_none(default) for one, default in (*defaults, *later)):
            return True
    if any(is_unset(call, name) for call in module.names.nodes[ast.Call]):
        return True
    return any(
        is_none(each.value)
        and any(name == getattr(t, "attr", getattr(t, "id", "")) for t in each.targets)
        for each in module.names.nodes[ast.Assign]
    )


def is_something(value: ast.expr) -> bool:
    """Whether a place runs behind `if x:` or `if x is not None:` for its value `x`."""
    written = ast.unparse(value)
    known = (written, f"{written} is not None")
    at: ast.AST = value
    parent = getattr(value, "parent", None)
    while parent is not None and not isinstance(parent, SCOPES):
        if (isinstance(parent, ast.If) and at in parent.body) or (
            isinstance(parent, ast.IfExp) and at is parent.body
        ):
            test = parent.test
            both = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
            if any(ast.unparse(each) in known for each in (test.values if both else [test])):  # type: ignore[attr-defined]
                return True
        at, parent = parent, getattr(parent, "parent", None)
    return False


def is_unset(call: ast.Call, name: str) -> bool:
    """Whether a call defines the option of a name that is None where the user gives nothing."""
    defines = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if defines not in OPTION_CALLS:
        return False
    keywords = {each.arg: each.value for each in call.keywords}
    clicks = defines in ("option", "argument")
    if option_name(call, keywords, clicks=clicks) != name:
        return False
    needed = getattr(call.args[0], "value", "-") if call.args else "-"
    if "default" in keywords or OPTION_CALLS[defines] > 1:
        return any(map(is_none, (keywords.get("default"), *call.args[1:2])))
    flag = str(getattr(keywords.get("action"), "value", "")).startswith("store_")
    required = getattr(keywords.get("required"), "value", False)
    return not (flag or required) and str(needed).startswith("-")


def is_none(node: ast.expr | None) -> bool:
    """A literal None."""
    return isinstance(node, ast.Constant) and node.value is None
