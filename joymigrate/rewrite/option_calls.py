"""Calls that define an option of a program, or read one by name."""

from __future__ import annotations

import ast

# Calls that define an option, and where their values given by position end (from the second on).
OPTION_CALLS = {
    "add_argument": 1, "add_option": 1, "option": 1, "argument": 1,
    "DEFINE_string": 2, "DEFINE_enum": 3, "DEFINE_list": 2, "DEFINE_multi_enum": 3,
}  # fmt: skip


def option_name(
    call: ast.Call, keywords: dict[str | None, ast.expr], *, clicks: bool
) -> str | None:
    """The name under which the program reads an option, None when none is written there."""
    given = keywords.get("dest")
    if isinstance(given, ast.Constant):
        return str(given.value)
    flags = [a.value for a in call.args if isinstance(a, ast.Constant)]
    words = [flag for flag in flags if isinstance(flag, str)]
    bare = [word for word in words if word.isidentifier()]
    if clicks and bare:
        return bare[0]
    long = [word for word in words if word.startswith("--")] or words[:1]
    return long[0].lstrip("-").split("/")[0].replace("-", "_") if long else None


def looked_up(call: ast.Call) -> str | None:
    """The key of `get(key, default)` or the attribute of `getattr(o, name, default)`."""
    method = isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "pop", "setdefault")
    for argument in call.args[: 1 if method else 2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            name = argument.value
            variable = environment(call.func)
            return name if name.isidentifier() and (variable or not name.isupper()) else None
    return None


def environment(node: ast.expr) -> bool:
    """Whether an expression is the environment, or a function that reads it."""
    while isinstance(node, ast.Attribute) and node.attr not in ("environ", "getenv"):
        node = node.value
    return getattr(node, "attr", getattr(node, "id", "")) in ("environ", "getenv")


def find_offered(node: ast.expr) -> ast.expr | None:
    """What holds the values that an option allows, where `node` is one of them; else None.

    `choices=[…]` of an option, `Choice([…])`, the values of `DEFINE_enum`, a list kept in a
    variable that is given as `choices=` in the same module, and `Literal[…]`.
    """
    outer = getattr(node, "parent", None)
    taker = getattr(outer, "parent", None)
    if isinstance(outer, ast.Subscript):
        return outer if literal_type(outer) and node is outer.slice else None
    if not isinstance(outer, (ast.List, ast.Tuple, ast.Set)):
        return None
    if isinstance(taker, ast.Subscript):
        return outer if literal_type(taker) and outer is taker.slice else None
    if isinstance(taker, ast.keyword):
        return outer if taker.arg in ("choices", "enum_values") else None
    if isinstance(taker, ast.Dict) and outer in taker.values:  # `metadata={"choices": […]}`
        key = taker.keys[taker.values.index(outer)]
        return outer if getattr(key, "value", None) == "choices" else None
    if isinstance(taker, ast.Call):
        name = getattr(taker.func, "attr", getattr(taker.func, "id", ""))
        enum = name in ("DEFINE_enum", "DEFINE_multi_enum") and outer in taker.args[2:3]
        return outer if enum or name == "Choice" else None
    if isinstance(taker, ast.Assign) and len(taker.targets) == 1:
        target = taker.targets[0]
        return outer if isinstance(target, ast.Name) and given_as_choices(target) else None
    return None


def offers(held: ast.expr, value: str) -> bool:
    """Whether a value stands among those that an option allows."""
    return any(isinstance(each, ast.Constant) and each.value == value for each in ast.walk(held))


def literal_type(node: ast.Subscript) -> bool:
    """Whether a subscript is `Literal[…]`."""
    return getattr(node.value, "attr", getattr(node.value, "id", "")) == "Literal"


def given_as_choices(target: ast.Name) -> bool:
    """Whether a variable of a module's top level is the `choices` of an option there.

    One that is read in other ways as well is not: `DEVICES[0]` would still give the origin's.
    """
    block = getattr(getattr(target, "parent", None), "parent", None)
    if not isinstance(block, ast.Module):
        return False
    read = [
        getattr(each, "parent", None)
        for each in ast.walk(block)
        if isinstance(each, ast.Name) and each.id == target.id and each is not target
    ]
    given = [each for each in read if isinstance(each, ast.keyword) and each.arg == "choices"]
    return bool(given) and all(each in given or is_membership(each) for each in read)


def is_membership(node: ast.AST | None) -> bool:
    """Whether a comparison is `… in …` or `… not in …`."""
    return isinstance(node, ast.Compare) and all(
        isinstance(each, (ast.In, ast.NotIn)) for each in node.ops
    )
