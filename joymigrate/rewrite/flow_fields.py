"""Fields of classes that code elsewhere speaks of by name: their validators, their metadata."""

from __future__ import annotations

import ast

from joymigrate.rewrite.flow_graph import SINK
from joymigrate.rewrite.flow_tables import Values


def follow_validator(
    flow: Values, node: ast.FunctionDef | ast.AsyncFunctionDef, function: str
) -> None:
    """`@field_validator("device") def check(cls, v)`: the value is the field's.

    `function` is the qualified name of `node`. Forms of pydantic, attrs and SQLAlchemy.
    """
    parameters = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        func = call.func if call is not None else decorator
        name = str(getattr(func, "attr", getattr(func, "id", "")))
        if not name.endswith(("validator", "validates")):
            continue
        fields = [a.value for a in call.args if isinstance(a, ast.Constant)] if call else []
        at = 1  # behind `cls` or `self`
        if call is None and isinstance(func, ast.Attribute):  # `@device.validator` of attrs
            fields, at = [getattr(func.value, "id", "")], 2
        elif name == "validates":  # of SQLAlchemy: self, key, value
            at = 2
        for field in fields if at < len(parameters) else ():
            key = f"{function}#{parameters[at]}"
            kind = flow.sinks.names.get(field) if isinstance(field, str) else None
            if kind:
                flow.edges[key].add(SINK + kind)
            elif isinstance(field, str) and field.isidentifier():
                flow.edges[f".{field}"].add(key)


def field_keys(flow: Values, metadata: ast.Dict) -> list[str]:
    """Keys of the field that a table describes: `x: str = field(metadata={"choices": […]})`."""
    holder = getattr(metadata, "parent", None)
    if not isinstance(holder, ast.keyword) or holder.arg != "metadata":
        return []
    owner = getattr(getattr(holder, "parent", None), "parent", None)
    return flow.target_keys(owner.target) if isinstance(owner, ast.AnnAssign) else []
