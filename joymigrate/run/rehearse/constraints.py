"""What kernels want of a whole call: relations of dtypes, ranks, shapes and attributes.

`rules/<chip>/kernels/*.yaml` holds them by family of kernels, each line with its source; this file
is the one judge. A relation that cannot be asked of a call (a tensor is not there, a name is not
known) says nothing, and counts as not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import Text
from joymigrate.schema import read_yaml

DTYPES, RELATIONS, RANK, SHAPES, ATTRIBUTES = "dtypes", "relations", "rank", "shapes", "attributes"
KINDS = (DTYPES, RELATIONS, RANK, SHAPES, ATTRIBUTES)
NOBODY = "nobody"  # of a call of which nothing was compared


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a call."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call in order: a `Tensor`, a tuple of them (a list), None where an
    optional one is left out; arrays of numbers and single numbers apart, as far as known."""

    slots: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    arrays: tuple[tuple[int, ...], ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def there(self) -> tuple[Tensor | tuple[Tensor, ...], ...]:
        """The tensors and lists that are given."""
        return tuple(one for one in self.slots if one is not None)


@dataclass(frozen=True, slots=True)
class Relation:
    """One line of a table: `of` names tensors, by parameter or by place (0, -1)."""

    name: str
    of: tuple[str | int, ...]
    values: tuple[int, ...]
    source: str
    grade: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A relation that a call does not keep."""

    kernel: str
    relation: Relation
    dtype: str = ""

    @property
    def source(self) -> str:
        """Who says so."""
        return self.relation.source

    @property
    def message(self) -> Text:
        """What is refused, in one clause."""
        return Text(
            MESSAGES[self.relation.name],
            kernel=self.kernel,
            of=", ".join(str(one) for one in self.relation.of),
            values=", ".join(map(str, self.relation.values)),
        )


def broadcast(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that two shapes broadcast to; None where they do not."""
    made = []
    for a, b in zip_longest(reversed(one), reversed(other), fillvalue=1):
        if a != b and 1 not in (a, b):
            return None
        made.append(b if a == 1 else a)
    return tuple(reversed(made))


def axis_fits(axis: int, rank: int) -> bool:
    """Whether a dimension's number exists; a tensor without dimensions has one."""
    return -max(rank, 1) <= axis < max(rank, 1)


def axes_fit(call: Call) -> bool | None:
    """Whether the first array names dimensions of the first tensor, each once."""
    first = call.there[0] if call.there else None
    if not call.arrays or not isinstance(first, Tensor):
        return None
    rank = max(len(first.shape), 1)
    axes = call.arrays[0]
    fit = all(axis_fits(axis, rank) for axis in axes)
    return fit and len({axis % rank for axis in axes}) == len(axes)


def first_axis_fits(call: Call) -> bool | None:
    """Whether the first number is a dimension of the first tensor."""
    first = call.there[0] if call.there else None
    first = first[0] if isinstance(first, tuple) and first else first
    if not call.numbers or not isinstance(first, Tensor):
        return None
    return axis_fits(call.numbers[0], len(first.shape))


def leading_equal(tensors: Sequence[Tensor], window: int) -> bool:
    """Whether batch and channels of two tensors are equal: all sizes before the last `window`."""
    return tensors[0].shape[:-window] == tensors[1].shape[:-window]


def fit_padding(call: Call, small: Tensor, large: Tensor) -> bool | None:
    """Whether a shape is the other one with the first array added: pairs from the last dimension
    on, before and after."""
    if not call.arrays or len(call.arrays[0]) % 2:
        return None
    pads = call.arrays[0]
    if len(small.shape) != len(large.shape) or 2 * len(small.shape) < len(pads):
        return False
    wanted = list(small.shape)
    for n in range(len(pads) // 2):
        wanted[-1 - n] += pads[2 * n] + pads[2 * n + 1]
    return tuple(wanted) == large.shape


def lists_agree(call: Call) -> bool | None:
    """Whether all lists of a call are of one length, and each of one dtype."""
    lists = [one for one in call.there if isinstance(one, tuple) and one]
    if not lists:
        return None
    return len({len(one) for one in lists}) == 1 and all(
        len({tensor.dtype for tensor in one}) == 1 for one in lists
    )


Judge = Callable[[Call, Sequence[Tensor], tuple[int, ...]], "bool | None"]
# What each relation compares, and how. Tensors come in the order in which the line names them.
JUDGES: Mapping[str, tuple[str, Judge]] = {
    "same_dtype": (RELATIONS, lambda _, t, __: len({one.dtype for one in t}) == 1),
    "same_rank": (RANK, lambda _, t, __: len({len(one.shape) for one in t}) == 1),
    "same_shape": (SHAPES, lambda _, t, __: len({one.shape for one in t}) == 1),
    "broadcastable": (SHAPES, lambda _, t, __: broadcast(t[0].shape, t[1].shape) is not None),
    "broadcast": (SHAPES, lambda _, t, __: broadcast(t[0].shape, t[1].shape) == t[2].shape),
    "expands": (SHAPES, lambda _, t, __: broadcast(t[0].shape, t[1].shape) == t[1].shape),
    "leading_equal": (SHAPES, lambda _, t, v: leading_equal(t, v[0])),
    "padded": (SHAPES, lambda c, t, _: fit_padding(c, t[0], t[1])),
    "ranks": (RANK, lambda _, t, v: all(len(one.shape) in v for one in t)),
    "most_dimensions": (RANK, lambda c, _, v: deepest(c) <= v[0]),
    "array_length": (ATTRIBUTES, lambda c, _, v: len(c.arrays[0]) in v if c.arrays else None),
    "axes": (ATTRIBUTES, lambda c, _, __: axes_fit(c)),
    "axis": (ATTRIBUTES, lambda c, _, __: first_axis_fits(c)),
    "lists_agree": (RELATIONS, lambda c, _, __: lists_agree(c)),
    "contract": (
        SHAPES,
        lambda _, t, __: (
            min(len(t[0].shape), len(t[1].shape)) < 2 or t[0].shape[-1] == t[1].shape[-2]
        ),
    ),
}
MESSAGES = {
    "same_dtype": "{kernel} wants one dtype of these tensors: {of}",
    "same_rank": "{kernel} wants as many dimensions of each of these tensors: {of}",
    "same_shape": "{kernel} wants one shape of these tensors: {of}",
    "broadcastable": "{kernel} wants shapes that broadcast: {of}",
    "broadcast": "{kernel} wants the shape that the others broadcast to: {of}",
    "expands": "{kernel} wants a shape that the other one broadcasts to: {of}",
    "leading_equal": "{kernel} wants batch and channels of one size in these tensors: {of}",
    "padded": "{kernel} wants the shape of the first tensor with its padding in the second: {of}",
    "ranks": "{kernel} wants {values} dimensions of tensor {of}",
    "most_dimensions": "{kernel} takes at most {values} dimensions",
    "array_length": "{kernel} wants {values} numbers in its first array",
    "axes": "{kernel} wants dimensions that exist, each once",
    "axis": "{kernel} wants a dimension that exists",
    "lists_agree": "{kernel} wants lists of one length and of one dtype each",
    "contract": "{kernel} wants as many columns of the first matrix as rows of the second: {of}",
}


def deepest(call: Call) -> int:
    """The most dimensions of any tensor of a call."""
    flat = [one for slot in call.there for one in (slot if isinstance(slot, tuple) else (slot,))]
    return max((len(one.shape) for one in flat), default=0)


@cache
def read_constraints(folder: Path) -> Mapping[str, tuple[Relation, ...]]:
    """Kernel → its relations, of every file of a folder. Raises `JoyError` for an unknown relation
    and for a line without a source."""
    found: dict[str, list[Relation]] = {}
    for path in sorted(folder.glob("*.yaml")):
        for family in read_yaml(path)["families"]:
            relations = [read_relation(one, f"{path}: {family['family']}")
                         for one in family["relations"]]  # fmt: skip
            for kernel in family["kernels"].split():
                found.setdefault(f"aclnn{kernel}", []).extend(relations)
    return {kernel: tuple(relations) for kernel, relations in found.items()}


def read_relation(raw: Mapping[str, Any], where: str) -> Relation:
    """One line, checked."""
    name = raw.get("relation")
    if name not in JUDGES:
        raise JoyError(
            f"unknown relation '{name}'.{did_you_mean(str(name), list(JUDGES))}", where=where
        )
    if not raw.get("source") or not raw.get("grade"):
        raise JoyError(
            f"the relation '{name}' has no source", where=where, help="source: …, grade: recorded"
        )
    return Relation(
        str(name), tuple(raw.get("of", ())), tuple(raw.get("values", ())), raw["source"],
        raw["grade"],
    )  # fmt: skip


def judge(
    kernel: str, relations: Sequence[Relation], call: Call, names: Sequence[str]
) -> tuple[frozenset[str], Broken | None]:
    """Which kinds of relations were compared, and the first that the call does not keep. `names`
    are the parameters of its slots, where known."""
    kinds = set()
    for relation in relations:
        tensors = pick(relation.of, call, names)
        if tensors is None:
            continue
        kind, keeps = JUDGES[relation.name]
        kept = keeps(call, tensors, relation.values)
        if kept is None:
            continue
        kinds.add(kind)
        if not kept:
            return frozenset(kinds), Broken(kernel, relation)
    return frozenset(kinds), None


def pick(of: Sequence[str | int], call: Call, names: Sequence[str]) -> list[Tensor] | None:
    """The tensors that a line names; None where one is not there."""
    found = []
    for one in of:
        if isinstance(one, int):
            there = call.there
            value = there[one] if -len(there) <= one < len(there) and len(there) > 1 else None
        else:
            value = call.slots[names.index(one)] if one in names else None
        if isinstance(value, tuple):
            value = value[0] if value else None
        if value is None:
            return None
        found.append(value)
    return found
