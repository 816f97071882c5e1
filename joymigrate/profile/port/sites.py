"""What the calls that launch a kernel put into each parameter: tensors, strides, sizes, flags."""

from __future__ import annotations

import ast
import re

from joymigrate.profile.port.dotted_names import dotted_name
from joymigrate.profile.port.find import Launch
from joymigrate.profile.port.values import find_assigned

TENSOR_WORDS = frozenset(
    ("shape", "stride", "dtype", "device", "numel", "is_contiguous", "size", "contiguous",
     "element_size", "view", "data_ptr", "ndim", "dim")
)  # fmt: skip
MAKERS = re.compile(r"(^|\.)(empty|zeros|ones|full|rand|randn|tensor|arange|contiguous|view|reshape"
                    r"|empty_like|zeros_like|ones_like|full_like|new_empty|new_zeros|cumsum"
                    r"|transpose|permute|squeeze|unsqueeze|to|float|detach)$")  # fmt: skip
DTYPE = re.compile(r"dtype\s*=\s*torch\.(int8|int16|int32|int64|long|int|bool|uint8)")
SHORT = {"long": "int64", "int": "int32"}
DEEP = 3


def kinds(launches: list[Launch]) -> dict[str, tuple[str, str]]:
    """By parameter: `pointer` (with a dtype or ""), `stride`, `number`, `flag`, `real`, `none`.

    Several launches agree, or the first one that says something counts; a tensor beats `none`.
    """
    found: dict[str, tuple[str, str]] = {}
    for launch in launches:
        for name, value in launch.given.items():
            kind = kind_of(value, launch.caller, DEEP)
            if kind[0] and found.get(name, ("none", ""))[0] in ("none",):
                found[name] = kind
    return found


def kind_of(node: ast.expr, caller: ast.FunctionDef | None, deep: int) -> tuple[str, str]:
    """The kind of one argument; ("", "") where the source does not tell."""
    if isinstance(node, ast.Constant):
        return of_constant(node.value)
    if (
        isinstance(node, (ast.Compare, ast.BoolOp))
        or dotted_name(getattr(node, "func", node)) == "bool"
    ):
        return "flag", ""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "flag", ""
    if isinstance(node, ast.IfExp):
        both = [kind_of(one, caller, deep) for one in (node.body, node.orelse)]
        return next((one for one in both if one[0] not in ("", "none")), both[0])
    if isinstance(node, ast.Subscript):
        return kind_of_part(node, caller, deep)
    if isinstance(node, ast.Call):
        return of_call(node)
    if isinstance(node, ast.BinOp):
        return "number", ""
    if isinstance(node, ast.Attribute):
        return ("dtype", "") if node.attr == "dtype" else ("", "")
    if isinstance(node, ast.Name) and caller is not None and deep:
        return of_name(node.id, caller, deep - 1)
    return "", ""


def of_constant(value: object) -> tuple[str, str]:
    """None, a flag, a number."""
    if value is None:
        return "none", ""
    if isinstance(value, bool):
        return "flag", ""
    return ("real", "") if isinstance(value, float) else ("", "")


def kind_of_part(node: ast.Subscript, caller: ast.FunctionDef | None, deep: int) -> tuple[str, str]:
    """`x.shape[0]`, `x.stride()[1]`; a part of a tensor."""
    text = ast.unparse(node.value)
    if text.endswith((".shape", ".size()")):
        return "number", ""
    if text.endswith(".stride()"):
        return "stride", ""
    return kind_of(node.value, caller, deep)


def of_call(node: ast.Call) -> tuple[str, str]:
    """Strides and sizes that are asked of a tensor; tensors that are made on the spot."""
    name = dotted_name(node.func)
    last = node.func.attr if isinstance(node.func, ast.Attribute) else name.rpartition(".")[2]
    if last == "stride":
        return "stride", ""
    if last in ("size", "numel", "len", "cdiv", "min", "max", "int", "next_power_of_2"):
        return "number", ""
    if MAKERS.search(last):
        dtype = DTYPE.search(ast.unparse(node))
        return "pointer", SHORT.get(dtype[1], dtype[1]) if dtype else ""
    return ("real", "") if last in ("sqrt", "float") else ("", "")


def of_name(name: str, caller: ast.FunctionDef, deep: int) -> tuple[str, str]:
    """A variable: what it is given, how it is annotated, what is asked of it."""
    for value, place in find_assigned(name, caller):
        if place is not None:
            text = ast.unparse(value)
            if text.endswith((".shape", ".size()")):
                return "number", ""
            if text.endswith(".stride()"):
                return "stride", ""
            continue
        kind = kind_of(value, caller, deep)
        if kind[0] not in ("", "none"):
            return kind
    arguments = (*caller.args.args, *caller.args.kwonlyargs)
    annotation = next((a.annotation for a in arguments if a.arg == name), None)
    said = ast.unparse(annotation) if annotation is not None else ""
    if "Tensor" in said:
        return "pointer", ""
    for word, kind_ in (("bool", "flag"), ("float", "real"), ("int", "number")):
        if re.search(rf"\b{word}\b", said):
            return kind_, ""
    for node in ast.walk(caller):
        asked = isinstance(node, ast.Attribute) and node.attr in TENSOR_WORDS
        if isinstance(node, ast.Attribute) and asked and dotted_name(node.value) == name:
            return "pointer", ""
    return "", ""
