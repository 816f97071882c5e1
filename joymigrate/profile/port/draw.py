"""Arguments for one kernel, drawn by what its source does with each parameter.

Numbers that a call site says are taken from it. Pointers get buffers with room on both sides; a
parameter whose values are used in addresses gets small whole numbers.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.profile.port.dotted import dotted
from joymigrate.profile.port.find import SourceKernel
from joymigrate.profile.port.lanes import calls, first_name, names

ACCESS = frozenset(("load", "store", "make_block_ptr"))
FLAG = re.compile(
    r"^(IS|USE|HAS|STORE|DO|SAVE|RETURN|APPLY|WITH|ENABLE|REVERSE|OUTPUT|ADD)_|_FLAG$", re.I
)
REAL = re.compile(r"eps|scale|alpha|beta|gamma|^p$|temperature|softcap|dropout|lr|multiplier|smooth"
                  r"|momentum|decay|norm|weight$|factor|^B$|threshold", re.IGNORECASE)  # fmt: skip
WHOLE = re.compile(r"idx|index|indices|ids|offset|cu_|lens|target|label|slot|table|mapping",
                   re.IGNORECASE)  # fmt: skip
# `k` may be a tensor; `K` beside M and N is a size.
POINTER = re.compile(
    r"(?i:_?(ptr|ptrs|p)$)|^(x|y|z|q|k|v|o|g|w|h|dq|dk|dv|do|dx|dy|dw|dg|dh|db|X|Y|Z|Q|W|DX|DY|DW)$"
)


@dataclass(frozen=True, slots=True)
class Role:
    """What a parameter is: pointer (`dtype`), flag, size, real, number, or fixed (as called)."""

    name: str
    kind: str
    constexpr: bool
    dtype: str = "float32"
    value: Any = None


def roles(kernel: SourceKernel) -> list[Role]:
    """The role of every parameter."""
    pointers, whole = bases(kernel)
    sizes = lane_sizes(kernel)
    flags = tested(kernel)
    said: dict[str, int] = {}
    for launch in kernel.launches:
        said = {**launch.numbers, **said}
    defaults = dict(zip(
        [a.arg for a in reversed(kernel.node.args.args)],
        reversed(kernel.node.args.defaults), strict=False,
    ))  # fmt: skip
    found = []
    for argument in kernel.node.args.args:
        name = argument.arg
        fixed = argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)
        default = defaults.get(name)
        literal = default.value if isinstance(default, ast.Constant) else None
        if name in pointers:
            kind = "pointer"
        elif fixed and name in said:
            found.append(Role(name, "fixed", fixed, value=said[name]))
            continue
        elif (
            (fixed and isinstance(literal, bool)) or name in flags or (fixed and FLAG.search(name))
        ):
            kind = "flag"
        elif isinstance(literal, float) or (REAL.search(name) and name not in sizes):
            kind = "real"
        elif name in sizes:
            kind = "size"
        elif fixed and isinstance(literal, (int, str)):
            found.append(Role(name, "fixed", fixed, value=literal))
            continue
        else:
            kind = "pointer" if not fixed and POINTER.search(name) else "number"
        dtype = "int64" if name in whole or WHOLE.search(name) else "float32"
        found.append(Role(name, kind, fixed, dtype))
    return found


def bases(kernel: SourceKernel) -> tuple[set[str], set[str]]:
    """Parameters that are pointers, and those whose values are used in addresses."""
    parameters = {a.arg for a in kernel.node.args.args}
    made: dict[str, list[ast.expr]] = {}
    for node in ast.walk(kernel.node):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                made.setdefault(dotted(target), []).append(node.value)
    pointers: set[str] = set()
    values: dict[str, str] = {}  # variable → pointer that it was read from
    addressed: set[str] = set()

    def origin(name: str, seen: tuple[str, ...] = ()) -> str:
        if name in parameters or name in seen:
            return name
        for value in made.get(name, ()):
            inner = value
            if isinstance(inner, ast.Call) and inner.args:  # make_block_ptr(base, …), advance(p, …)
                inner = inner.args[0]
            found = origin(first_name(inner), (*seen, name))
            if found in parameters:
                return found
        return name

    for call, name in calls(kernel.node, kernel.language):
        if call.args and (name in ACCESS or name.startswith("atomic_")):
            pointers.add(origin(first_name(call.args[0])))
            addressed |= names(call.args[0])
        for word in call.keywords:
            if name == "make_block_ptr" and word.arg == "base":
                pointers.add(origin(first_name(word.value)))
    for variable, expressions in made.items():
        for value in expressions:
            for call, name in calls(value, kernel.language):
                if name == "load" and call.args:
                    values[variable] = origin(first_name(call.args[0]))
    reached = set(addressed)
    for _ in range(4):
        for variable in tuple(reached):
            for value in made.get(variable, ()):
                reached |= names(value)
    whole = {pointer for variable, pointer in values.items() if variable in reached}
    return pointers & parameters, whole & parameters


def lane_sizes(kernel: SourceKernel) -> set[str]:
    """Parameters that are the sizes of lanes or shapes."""
    found: set[str] = set()
    for call, name in calls(kernel.node, kernel.language):
        if name == "arange":
            found |= names(call.args[-1]) if call.args else set()
        elif name in ("zeros", "full", "make_block_ptr"):
            for part in [*call.args[:1], *(k.value for k in call.keywords)]:
                if isinstance(part, (ast.Tuple, ast.List)) and name != "make_block_ptr":
                    found |= names(part)
        if name == "make_block_ptr":
            place = next((k.value for k in call.keywords if k.arg == "block_shape"), None)
            place = place or (call.args[4] if len(call.args) > 4 else None)
            found |= names(place) if place is not None else set()
    parameters = {a.arg for a in kernel.node.args.args}
    return found & parameters


def tested(kernel: SourceKernel) -> set[str]:
    """Parameters that an `if` asks as they are."""
    found: set[str] = set()
    for node in ast.walk(kernel.node):
        if isinstance(node, (ast.If, ast.IfExp)):
            parts = [node.test]
            while parts:
                part = parts.pop()
                if isinstance(part, ast.BoolOp):
                    parts += part.values
                elif isinstance(part, ast.UnaryOp):
                    parts.append(part.operand)
                elif isinstance(part, ast.Name):
                    found.add(part.id)
    return found & {a.arg for a in kernel.node.args.args}


def draw(found: list[Role], seed: int) -> dict[str, Mapping[str, Any]]:
    """One set of arguments as JSON; later seeds have smaller numbers."""
    random_ = random.Random(seed)
    small = seed % 3
    made: dict[str, Mapping[str, Any]] = {}
    for role in found:
        if role.kind == "pointer":
            made[role.name] = {"pointer": role.dtype, "seed": random_.randrange(1 << 30)}
        elif role.kind == "fixed":
            made[role.name] = {"value": role.value}
        elif role.kind == "flag":
            made[role.name] = {"value": random_.random() < 0.5}
        elif role.kind == "size":
            made[role.name] = {"value": 16 if small else 32}
        elif role.kind == "real":
            made[role.name] = {"value": round(random_.uniform(0.1, 1.0), 3)}
        else:
            made[role.name] = {"value": number(role, random_, small)}
    return made


def number(role: Role, random_: random.Random, small: int) -> Any:
    """A whole number: strides are wide enough for a row, counts leave a tail."""
    name = role.name.lower()
    if "dtype" in name or name.endswith("_type"):
        return {"dtype": "float32"}
    if "stride" in name:
        return 2048 if not small else 256
    if "seed" in name:
        return 7
    if role.constexpr:
        return random_.choice([16, 32] if not small else [2, 4])
    return random_.choice([13, 27, 50] if not small else [3, 5])
