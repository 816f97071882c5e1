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
    for argument in call.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            name = argument.value
            return name if name.isidentifier() and not name.isupper() else None
    return None
