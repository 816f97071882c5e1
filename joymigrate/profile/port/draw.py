"""Arguments for one kernel, drawn by what its source does with each parameter.

Numbers that a call site says are taken from it. Pointers get buffers with room on both sides; a
parameter whose values are used in addresses gets small whole numbers. What does not fit is mended
by `retry.py` from what Triton's front end or its interpreter says.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.profile.port.find import SourceKernel, is_constexpr
from joymigrate.profile.port.flow import KernelFlow, Uses

FLAG = re.compile(
    r"^(IS|USE|HAS|STORE|DO|SAVE|RETURN|APPLY|WITH|ENABLE|REVERSE|OUTPUT|ADD)_|_FLAG$", re.I
)
REAL = re.compile(r"eps|scale|alpha|beta|gamma|^p$|temperature|softcap|dropout|lr|multiplier|smooth"
                  r"|momentum|decay|norm|weight$|factor|threshold|_(min|max)$",
                  re.IGNORECASE)  # fmt: skip
WHOLE = re.compile(r"idx|index|indices|ids|offset|cu_|lens|target|label|slot|table|mapping",
                   re.IGNORECASE)  # fmt: skip
RISING = re.compile(r"cu_|offset|indptr|start_loc|_loc$|seqlens", re.IGNORECASE)
DTYPE = re.compile(r"dtype|_type$", re.IGNORECASE)
# `k` may be a tensor; `K` beside M and N is a size.
POINTER = re.compile(
    r"(?i:_?(ptr|ptrs|p)$)|^(x|y|z|q|k|v|o|g|w|h|dq|dk|dv|do|dx|dy|dw|dg|dh|db|X|Y|Z|Q|W|DX|DY|DW)$"
)
LARGEST = 256  # lanes of a side: the interpreter is slow


@dataclass(frozen=True, slots=True)
class Role:
    """What a parameter is: pointer (`dtype`), flag, size, real, number, type, stride (`value`: how
    many sides are inside of this one, of a tensor with `sides`), none, or fixed (as called)."""

    name: str
    kind: str
    constexpr: bool
    dtype: str = "float32"
    value: Any = None  # of a choice a tuple
    sides: int = 1
    sure: bool = False  # nothing else than a number, by what is done with it
    nullable: bool = False


def roles(kernel: SourceKernel, tree: ast.Module) -> list[Role]:
    """The role of every parameter; `tree` holds the functions that the kernel calls."""
    flow = KernelFlow(tree, kernel.language)
    uses = flow.uses(flow.functions.get(kernel.name, kernel.node))
    said: dict[str, int] = {}
    for launch in kernel.launches:
        numbers = {n: v for n, v in launch.numbers.items() if not isinstance(v, bool)}
        said = {**numbers, **said}
    arguments = kernel.node.args
    defaults = dict(zip([a.arg for a in reversed(arguments.args)],
                        reversed(arguments.defaults), strict=False))  # fmt: skip
    strides = sides_of([a.arg for a in arguments.args])
    found = []
    for argument in arguments.args:
        name = argument.arg
        fixed = is_constexpr(argument)
        default = defaults.get(name)
        literal = default.value if isinstance(default, ast.Constant) else None
        kind, value = kind_of(name, fixed, literal, uses, said)
        known = {"sure": name in uses.numbers, "nullable": name in uses.nullable}
        if name in strides and kind in ("number", "real", "size"):
            inner, sides = strides[name]
            found.append(Role(name, "stride", fixed, value=inner, sides=sides, sure=True))
        else:
            found.append(Role(name, kind, fixed, dtype_of(name), value, **known))
    return found


def kind_of(
    name: str, fixed: bool, literal: Any, uses: Uses, said: Mapping[str, int]
) -> tuple[str, Any]:
    """The kind of one parameter, and the value of a fixed one."""
    choices = [one for one in uses.choices.get(name, ()) if not isinstance(one, bool)]
    if not fixed and name in uses.pointers:
        return "pointer", None
    if fixed and name in said:
        return ("fixed", said[name]) if said[name] <= LARGEST else ("size", None)
    if fixed and DTYPE.search(name) and name not in uses.choices:
        return "dtype", None
    if (fixed and isinstance(literal, bool)) or is_flag(name, fixed, uses):
        return "flag", None
    if choices:
        others = ("another",) if all(isinstance(one, str) for one in choices) else ()
        return "choice", tuple(dict.fromkeys((*choices, *others)))
    if isinstance(literal, float) or REAL.search(name):
        return "real", None
    if fixed:
        return ("fixed", literal) if isinstance(literal, (int, str)) else ("size", None)
    thing = POINTER.search(name) and name not in uses.numbers
    return ("pointer" if thing else "number"), None


def is_flag(name: str, fixed: bool, uses: Uses) -> bool:
    """Whether a parameter is asked as it is, or named like a flag."""
    if name in uses.choices:
        return False
    return name in uses.tested or bool(fixed and FLAG.search(name))


def dtype_of(name: str) -> str:
    """The type behind a pointer, by its name."""
    if WHOLE.search(name):
        return "rising" if RISING.search(name) else "int64"
    return "float32"


def role_of(fields: dict[str, Any]) -> Role:
    """A role out of JSON, where a tuple is a list."""
    value = fields["value"]
    return Role(**{**fields, "value": tuple(value) if isinstance(value, list) else value})


def sides_of(parameters: list[str]) -> dict[str, tuple[int, int]]:
    """Strides by tensor: how many sides lie inside of each, and how many there are."""
    groups: dict[str, list[str]] = {}
    for name in parameters:
        if "stride" in name.lower():
            rest = re.sub(r"strides?", "", name, flags=re.IGNORECASE).strip("_")
            group = re.sub(r"(_\w{1,6}|\d+|[a-z])$", "", rest, flags=re.IGNORECASE)
            groups.setdefault(group, []).append(name)
    return {
        name: (len(group) - 1 - place, len(group))
        for group in groups.values() for place, name in enumerate(group)
    }  # fmt: skip


def draw(found: list[Role], seed: int) -> dict[str, Mapping[str, Any]]:
    """One set of arguments as JSON; later seeds have smaller numbers."""
    random_ = random.Random(seed)
    small = seed % 3
    made: dict[str, Mapping[str, Any]] = {}
    for role in found:
        if role.kind == "pointer":
            made[role.name] = {"pointer": role.dtype, "seed": random_.randrange(1 << 30)}
            continue
        value: Any = None
        if role.kind == "fixed":
            value = role.value
        elif role.kind == "choice":
            value = random_.choice(role.value)
        elif role.kind == "flag":
            value = random_.random() < 0.5
        elif role.kind == "size":
            value = role.value or (16 if small else 32)
        elif role.kind == "real":
            value = round(random_.uniform(0.1, 1.0), 3)
        elif role.kind == "stride":
            value = stride(role, small)
        elif role.kind == "dtype":
            value = {"dtype": role.dtype}
        elif role.kind == "number":
            value = role.value if role.value is not None else number(role, random_, small)
        made[role.name] = {"value": value}
    return made


def stride(role: Role, small: int) -> int:
    """A stride that no other side of the same tensor reaches: rows never overlap."""
    if role.sides == 1:
        return 256 if small else 2048
    side = {2: 256 if small else 1024, 3: 64, 4: 32}.get(role.sides, 12)
    return int(side ** int(role.value))


def number(role: Role, random_: random.Random, small: int) -> Any:
    """A whole number: counts leave a tail."""
    if "seed" in role.name.lower():
        return 7
    return random_.choice([13, 27, 50] if not small else [3, 5])
