"""What kernels want of a whole call: relations of dtypes, ranks, shapes, attributes and formats.

`rules/<chip>/kernels/families/*.yaml` holds them as expressions over the names of a kernel's
arguments (`arguments.csv`) or of an operator's schema, each with its source; this file is the one
judge. An expression that names what a call does not have, or what nobody knows, says nothing and
counts as not compared.
"""

from __future__ import annotations

import ast
import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import Text
from joymigrate.schema import read_yaml

DTYPES, RELATIONS, RANK, SHAPES, ATTRIBUTES, FORMATS = (
    "dtypes", "relations", "rank", "shapes", "attributes", "formats",
)  # fmt: skip
KINDS = (DTYPES, RELATIONS, RANK, SHAPES, ATTRIBUTES, FORMATS)
DOCUMENTED, GENERAL = "documented", "general"  # grades; a general line is a doubt, no refusal
ANY = "any"  # stands for every kernel
UNLIKE = 104729  # a length that no other of a call has: a prime
NOBODY = "nobody"  # of a call of which nothing was compared
ALL = "tensors"  # what an expression calls all tensors of a call
# What each part of an expression compares.
KIND_OF = {
    "dtype": RELATIONS, "rank": RANK, "shape": SHAPES, "numel": SHAPES, "format": FORMATS,
    "contiguous": FORMATS, "value": ATTRIBUTES,
}  # fmt: skip
FUNCTION_KINDS = {"broadcast": SHAPES, "private": FORMATS, "batches": SHAPES, "pooled": ATTRIBUTES}


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """One tensor of a call."""

    dtype: str
    shape: tuple[int, ...]
    format: str = "ND"
    contiguous: bool = True  # known of an operator's tensors alone

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


class Tensors(tuple[TensorArgument, ...]):
    """A list of tensors; a plain tuple is an array of numbers."""


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """One number with a dtype."""

    dtype: str
    value: float


Call = Mapping[str, Any]  # arguments by name; None where an optional one is left out


# ---- what expressions may call
CATEGORIES = ("bool", "int", "float", "complex")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "float32", "float64")
PRIVATE = ("NC1HWC0", "FRACTAL_NZ", "FRACTAL_Z", "NDC1HWC0", "FRACTAL_Z_3D", "C1HWNCoC0")


def category(dtype: str) -> int:
    """bool, integers, floating-point, complex: 0 to 3."""
    if dtype == "bool":
        return 0
    if dtype.startswith("complex"):
        return 3
    return 2 if "float" in dtype else 1


def castable(dtype: str, to: str) -> bool:
    """Whether torch lets a result of one dtype be stored as another."""
    return category(dtype) <= category(to)


def promote(*dtypes: str) -> str:
    """The dtype that torch computes tensors of several dtypes in; raises ValueError for pairs that
    torch does not promote."""
    made = dtypes[0]
    for other in dtypes[1:]:
        made = promote_two(made, other)
    return made


def promote_two(one: str, other: str) -> str:
    """The same of two dtypes."""
    if one == other:
        return one
    low, high = sorted((one, other), key=category)
    if category(low) < category(high):
        if high == "complex64" and low == "float64":
            return "complex128"
        return high
    if "bfloat16" in (one, other):
        rest = low if high == "bfloat16" else high
        return "float32" if rest == "float16" else rest
    if one.startswith("complex"):
        return max(one, other, key=lambda name: int(name.removeprefix("complex")))
    if {one, other} == {"uint8", "int8"}:
        return "int16"
    order = FLOATS if category(one) == 2 else INTEGERS
    return max(one, other, key=order.index)


def broadcast(*given: TensorArgument | Sequence[int] | None) -> tuple[int, ...] | None:
    """The shape that tensors or shapes broadcast to; None where they do not."""
    made: tuple[int, ...] = ()
    for one in given:
        if one is None:
            return None
        sizes = []
        shape = one.shape if isinstance(one, TensorArgument) else one
        for a, b in zip_longest(reversed(made), reversed(shape), fillvalue=1):
            if a != b and 1 not in (a, b):
                return None
            sizes.append(b if a == 1 else a)
        made = tuple(reversed(sizes))
    return made


def private(*tensors: TensorArgument) -> bool:
    """Whether a tensor lies in one of the chip's own formats."""
    return any(one.format.removeprefix("ACL_") in PRIVATE for one in tensors)


def same(*values: Any) -> bool:
    """Whether all are equal."""
    return all(one == values[0] for one in values[1:])


def axes_fit(axes: int | Sequence[int], rank: int) -> bool:
    """Whether these dimensions exist, each named once; a tensor without dimensions has one."""
    rank = max(rank, 1)
    named = [axes] if isinstance(axes, int) else list(axes)
    return all(-rank <= one < rank for one in named) and same(
        len({one % rank for one in named}), len(named)
    )


def without(shape: Sequence[int], axes: int | Sequence[int], keep: bool) -> tuple[int, ...]:
    """A shape after a reduction; no axes are all of them."""
    named = [axes] if isinstance(axes, int) else list(axes)
    gone = {one % max(len(shape), 1) for one in named or range(len(shape))}
    if keep:
        return tuple(1 if n in gone else size for n, size in enumerate(shape))
    return tuple(size for n, size in enumerate(shape) if n not in gone)


def resize_axis(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    """A shape with another size in one dimension."""
    made = list(shape)
    made[axis] = size
    return tuple(made)


def add_padding(shape: Sequence[int], pads: Sequence[int]) -> tuple[int, ...]:
    """A shape with its padding: pairs from the last dimension on, before and after."""
    made = list(shape)
    for n in range(len(pads) // 2):
        made[-1 - n] += pads[2 * n] + pads[2 * n + 1]
    return tuple(made)


def count_windows(
    size: int, window: int, stride: int, pad: int, dilation: int = 1, ceil: bool = False
) -> int:
    """How many places a window has along one dimension."""
    over = size + 2 * pad - dilation * (window - 1) - 1
    made = (over + stride - 1 if ceil else over) // stride + 1
    return made - 1 if ceil and (made - 1) * stride >= size + pad else made


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "all": all, "any": any, "abs": abs, "len": len, "max": max, "min": min, "range": range,
    "set": set, "sum": sum, "tuple": tuple, "zip": zip, "prod": math.prod,
    "finite": math.isfinite, "castable": castable, "promote": promote, "category": category,
    "broadcast": broadcast, "private": private, "same": same, "axes_fit": axes_fit,
    "without": without, "changed": resize_axis, "padded": add_padding, "pooled": count_windows,
}  # fmt: skip
NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv, ast.Compare, ast.Eq, ast.NotEq, ast.Lt,
    ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot, ast.Call, ast.Attribute,
    ast.Subscript, ast.Slice, ast.Name, ast.Constant, ast.Tuple, ast.List, ast.IfExp,
    ast.GeneratorExp, ast.comprehension, ast.Load, ast.Store, ast.Starred, ast.BitAnd,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShapeRelation:
    """One line of a table: an expression, the names that it needs and what it compares."""

    want: str
    code: CodeType
    names: tuple[str, ...]
    kinds: frozenset[str]
    source: str
    grade: str
    kernel: str = ""  # of an operator's relation


@dataclass(frozen=True, slots=True)
class BrokenRelation:
    """A relation that a call does not keep."""

    kernel: str
    relation: ShapeRelation
    found: str
    dtype: str = ""

    @property
    def source(self) -> str:
        """Who says so."""
        return self.relation.source

    @property
    def grade(self) -> str:
        """How sure that is; what was recorded counts as documented, and so it is told."""
        return GENERAL if self.relation.grade == GENERAL else DOCUMENTED

    @property
    def message(self) -> Text:
        """What is refused, in one clause."""
        return Text(
            "{kernel} wants {want}; here {found}",
            kernel=self.kernel,
            want=self.relation.want,
            found=self.found,
        )


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """Kernels or operators with the same relations; `let` names what several of them use."""

    relations: tuple[ShapeRelation, ...]
    let: tuple[tuple[str, ShapeRelation], ...]
    arguments: str = ""  # of kernels whose document names theirs otherwise


def judge(
    kernel: str, families: Sequence[KernelFamily], call: Call
) -> tuple[frozenset[str], BrokenRelation | None]:
    """Which kinds of relations were compared, and the first that the call does not keep. Shapes
    were compared where no length of any tensor could be another one unnoticed."""
    kinds, broken = compare(kernel, families, call)
    if broken is None and SHAPES in kinds and not pins_lengths(families, call):
        kinds -= {SHAPES}
    return kinds, broken


def compare(
    kernel: str, families: Sequence[KernelFamily], call: Call
) -> tuple[frozenset[str], BrokenRelation | None]:
    """Every relation of a call, up to the first that it does not keep."""
    kinds: frozenset[str] = frozenset()
    every = call.get(ALL) or tuple(flat_tensors(call.values()))
    for family in families:
        values = {**FUNCTIONS, ALL: every, **call}
        for name, meaning in family.let:
            values[name] = evaluate(meaning, values)
        for relation in family.relations:
            kept = evaluate(relation, values)
            if kept is None:
                continue
            kinds |= relation.kinds
            if not kept:
                found = ", ".join(
                    f"{name} = {describe_value(values[name])}"
                    for name in relation.names
                    if name in values
                )
                return kinds, BrokenRelation(relation.kernel or kernel, relation, found)
    return kinds, None


def pins_lengths(families: Sequence[KernelFamily], call: Call) -> bool:
    """Whether each length of each tensor is bound to the rest of the call: another one in its
    place breaks a relation."""
    return all(
        compare("", families, {**call, name: changed})[1] is not None
        for name, value in call.items()
        for changed in change_lengths(value)
    )


def change_lengths(value: Any) -> Iterator[Any]:
    """A tensor, or a sequence of them, with one length changed at a time; of tensors of one form
    in a list the first stands for all (an optimiser hands over hundreds)."""
    if isinstance(value, TensorArgument):
        for axis, size in enumerate(value.shape):
            near = {size - 1, size + 1} if size > 2 else {size + 1} if size > 1 else set()
            for other in {*near, UNLIKE}:
                yield replace(value, shape=resize_axis(value.shape, axis, other))
    elif isinstance(value, tuple):
        firsts = {one: place for place, one in reversed([*enumerate(value)])}
        for one, place in firsts.items():
            for changed in change_lengths(one):
                yield type(value)((*value[:place], changed, *value[place + 1 :]))


def flat_tensors(values: Iterable[Any]) -> Iterator[TensorArgument]:
    """The tensors among arguments and in lists of them, in order."""
    for one in values:
        if isinstance(one, TensorArgument):
            yield one
        elif isinstance(one, tuple):
            yield from flat_tensors(one)


def evaluate(relation: ShapeRelation, values: Mapping[str, Any]) -> Any:
    """What an expression gives; None where it can't be asked."""
    if any(values.get(name) is None for name in relation.names):
        return None
    try:
        return eval(relation.code, {"__builtins__": {}, **values})
    except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None


def describe_value(value: Any) -> str:
    """A value of a call in a message."""
    if isinstance(value, TensorArgument):
        layout = "" if value.format == "ND" else f" {value.format}"
        return f"{value.dtype}{list(value.shape)}{layout}"
    if isinstance(value, ScalarArgument):
        return f"{value.dtype}({value.value})"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(describe_value, value)) + "]"
    return str(value)


@cache
def read_arguments(path: Path) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Kernel → (name, type) of its arguments in order, as its prototype has them."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["kernel"]: read_prototype(row["arguments"]) for row in csv.DictReader(file)}


def read_prototype(text: str) -> tuple[tuple[str, str], ...]:
    """`self:T dim:i` as pairs."""
    pairs = (one.partition(":") for one in text.split())
    return tuple((name, kind) for name, _, kind in pairs)


@cache
def read_constraints(folder: Path) -> Mapping[str, tuple[KernelFamily, ...]]:
    """Kernel or operator → its families, of every file of a folder. Raises `JoyError` for an
    expression that can't be read and for a line without a source."""
    found: dict[str, list[KernelFamily]] = {}
    for path in sorted(folder.glob("*.yaml")):
        document = read_yaml(path)
        for raw in document["families"]:
            family = read_family({**document.get("default", {}), **raw}, str(path))
            for name in raw.get("kernels", "").split():
                found.setdefault(ANY if name == ANY else f"aclnn{name}", []).append(family)
            for name in raw.get("operators", "").split():
                found.setdefault(name, []).append(family)
    return {name: tuple(families) for name, families in found.items()}


def read_family(raw: Mapping[str, Any], where: str) -> KernelFamily:
    """One family, checked."""
    where = f"{where}: {raw.get('family')}"
    let = tuple(
        (name, read_relation({**raw, "want": want}, where))
        for name, want in raw.get("let", {}).items()
    )
    relations = [
        read_relation({**raw, **(one if isinstance(one, Mapping) else {"want": one})}, where)
        for one in raw["wants"]
    ]
    return KernelFamily(tuple(relations), let, raw.get("arguments", ""))


def read_relation(raw: Mapping[str, Any], where: str) -> ShapeRelation:
    """One line, checked."""
    want = " ".join(str(raw["want"]).split())
    if not raw.get("source") or not raw.get("grade"):
        raise JoyError(f"'{want}' has no source", where=where, help="source: …, grade: recorded")
    try:
        tree = ast.parse(want, mode="eval")
    except SyntaxError as error:
        raise JoyError(f"'{want}' is no expression: {error.msg}", where=where) from None
    names: dict[str, None] = {}
    bound: set[str] = set()
    kinds: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, NODES):
            raise JoyError(f"'{want}' may not hold {type(node).__name__}", where=where)
        if isinstance(node, ast.Attribute):
            if node.attr not in KIND_OF:
                raise JoyError(
                    f"unknown property '{node.attr}'.{did_you_mean(node.attr, list(KIND_OF))}",
                    where=where,
                )
            kinds.add(KIND_OF[node.attr])
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name not in FUNCTIONS:
                raise JoyError(
                    f"unknown function '{name}'.{did_you_mean(name, list(FUNCTIONS))}", where=where
                )
            kinds.add(FUNCTION_KINDS.get(name, ""))
        elif isinstance(node, ast.Name):
            (bound.add if isinstance(node.ctx, ast.Store) else names.setdefault)(node.id)
    free = tuple(name for name in names if name not in bound and name not in FUNCTIONS)
    if not kinds - {""}:
        kinds.add(ATTRIBUTES)
    return ShapeRelation(
        want, compile(tree, where, "eval"), free, frozenset(kinds - {""}), str(raw["source"]),
        str(raw["grade"]), str(raw.get("kernel", "")),
    )  # fmt: skip
