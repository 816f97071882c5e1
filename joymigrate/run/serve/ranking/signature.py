"""What a ranking model takes: which axis of each input is candidates, users or a sequence.

A program's own dynamic dimensions tell most of it; `ranking.json` (in the archive, or beside the
file as `NAME.ranking.json`) says the rest. What nobody said is not guessed: such a model answers
each request alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import document, read, setting

SCHEMA = "joymigrate.ranking-model/1"
FILE = "ranking.json"
CANDIDATE, USER, SEQUENCE = "candidate", "user", "sequence"
LENGTHS, OFFSETS, OWNER, FIXED = "lengths", "offsets", "owner", "fixed"
ROLES = (CANDIDATE, USER, SEQUENCE, LENGTHS, OFFSETS, OWNER)
DERIVED = (LENGTHS, OFFSETS, OWNER)  # a client may leave them out
BFLOAT16 = "bfloat16"
PADDED, JAGGED = "padded", "jagged"
HASH = "hash"  # how texts become ids


@dataclass(frozen=True, slots=True)
class Input:
    """One input. `shape` has None where a dimension is free; `ids` bounds its whole numbers.

    `axis` is what the first dimension counts: candidate, user, token (a jagged sequence), or fixed.
    `ids` is one bound, or one for each column of the last dimension; None: unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    role: str = FIXED
    axis: str = FIXED
    of: str = ""
    layout: str = ""
    pad: float | None = None
    ids: int | tuple[int, ...] | None = None
    texts: str = ""  # HASH: texts are taken, too
    vocabulary: Mapping[str, int] = field(default_factory=dict)  # or these
    unknown: int | None = None  # the id of every other text

    @property
    def held(self) -> str:
        """The type of its arrays: numpy has no bfloat16, whose numbers float32 holds exactly."""
        return "float32" if self.dtype == BFLOAT16 else self.dtype


@dataclass(frozen=True, slots=True)
class InputDescription:
    """What the program itself does not tell of an input."""

    role: str | None = setting(None, "what its first dimension counts", choices=ROLES)
    of: str = setting("", "the sequence whose lengths or offsets these are")
    layout: str | None = setting(None, "how a sequence lies", choices=(PADDED, JAGGED))
    pad: float | None = setting(None, "the number behind a sequence's end")
    ids: int | tuple[int, ...] | None = setting(
        None, "the bound of its whole numbers, or one for each column"
    )
    texts: str | None = setting(
        None, "texts are taken and hashed as in training, modulo `ids`", choices=(HASH,)
    )
    vocabulary: tuple[str, ...] = setting((), "texts are taken: their ids are their places here")
    unknown: int | None = setting(
        None, "the id of a text that is not in the vocabulary (default: an error)", least=0
    )


@document(
    "ranking-model",
    "What the inputs of a ranking model count: `ranking.json` in or beside a .pt2 file.",
)
@dataclass(frozen=True, slots=True)
class Description:
    """A ranking model's inputs and outputs."""

    VERSIONED: ClassVar[bool] = True

    inputs: Mapping[str, InputDescription] = setting(make=dict, help="by the program's names")
    outputs: tuple[str, ...] = setting(make=tuple, help="names of the outputs, in their order")
    dimensions: Mapping[str, Any] = setting(make=dict, help="free and fixed sizes (AOTInductor)")


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """All inputs and the names of the outputs; `alone` says why requests are not merged."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    alone: str = ""
    by_name: Mapping[str, Input] = field(default_factory=dict)

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Inputs of whole numbers whose bounds nobody knows."""
        return tuple(
            one.name
            for one in self.inputs
            if one.ids is None and one.dtype.startswith("int") and one.role not in DERIVED
        )


@dataclass(frozen=True, slots=True)
class Dimensions:
    """An input as the program states it: names of free dimensions, sizes of the others."""

    name: str
    dtype: str
    sizes: tuple[int | str, ...]


def build(
    stated: Sequence[Dimensions],
    outputs: Sequence[Dimensions],
    told: Mapping[str, Any] | None,
    bounds: Mapping[str, int | tuple[int, ...]],
    where: str,
) -> ModelSignature:
    """The signature of a program with what its description tells. Raises `JoyError`."""
    described = read(Description, told, where) if told else Description()
    check_names(described, [one.name for one in stated], where)
    symbol, alone = candidate_symbol(outputs)
    inputs = []
    for size in stated:
        row = described.inputs.get(size.name) or InputDescription()
        ids = bounds.get(size.name) if row.ids is None else row.ids
        inputs.append(input_of(size, row, symbol, ids))
    names = described.outputs or tuple(one.name for one in outputs)
    if len(names) != len(outputs):
        raise JoyError(f"{len(names)} outputs are named, the program has {len(outputs)}",
                       where=where)  # fmt: skip
    signature = ModelSignature(tuple(inputs), names, alone, {one.name: one for one in inputs})
    check_links(signature, where)
    return signature


def candidate_symbol(outputs: Sequence[Dimensions]) -> tuple[str | None, str]:
    """The dimension that all outputs begin with, or why there is none."""
    first = {one.sizes[0] if one.sizes else None for one in outputs}
    if len(first) == 1:
        symbol = first.pop()
        if isinstance(symbol, str):
            return symbol, ""
    return None, "the outputs do not begin with one free dimension, the candidates"


def input_of(
    one: Dimensions, row: InputDescription, symbol: str | None, ids: int | tuple[int, ...] | None
) -> Input:
    """One input, with its role and what its first dimension counts."""
    free = [isinstance(size, str) for size in one.sizes]
    shape = tuple(None if isinstance(size, str) else size for size in one.sizes)
    leading = one.sizes[0] if one.sizes else None
    ours = symbol is not None and leading == symbol
    role = row.role
    if role is None:
        role = FIXED if not ours else SEQUENCE if free[1:] and free[1] else CANDIDATE
    layout = row.layout or (PADDED if len(free) > 1 and free[1] else JAGGED)
    axis = {CANDIDATE: CANDIDATE, OWNER: CANDIDATE, FIXED: FIXED}.get(role, USER)
    if role == SEQUENCE:
        axis = "token" if layout == JAGGED else CANDIDATE if ours else USER
    elif role == LENGTHS and ours:
        axis = CANDIDATE
    return Input(
        one.name, one.dtype, shape, role, axis, row.of, layout if role == SEQUENCE else "",
        row.pad, ids, row.texts or "",
        {text: place for place, text in enumerate(row.vocabulary or ())}, row.unknown,
    )  # fmt: skip


def check_names(described: Description, names: Sequence[str], where: str) -> None:
    """A description names inputs that are there."""
    for name in described.inputs:
        if name not in names:
            raise JoyError(f"the program has no input '{name}'.{did_you_mean(name, names)}",
                           where=where, help=f"it has {', '.join(names)}")  # fmt: skip


def check_links(signature: ModelSignature, where: str) -> None:
    """Lengths and offsets name their sequence; a jagged sequence has one of them."""
    described = set()
    for one in signature.inputs:
        if one.role in (LENGTHS, OFFSETS):
            other = signature.by_name.get(one.of)
            if other is None or other.role != SEQUENCE:
                raise JoyError(f"input '{one.name}' is the {one.role} of '{one.of}', which is "
                               "no sequence", where=where)  # fmt: skip
            described.add(one.of)
    for one in signature.inputs:
        if one.layout == JAGGED and one.name not in described:
            raise JoyError(f"the jagged sequence '{one.name}' has no lengths and no offsets",
                           where=where, help="an input with role lengths or offsets")  # fmt: skip


def derive(signature: ModelSignature) -> dict[str, str]:
    """The lengths (or offsets) input of each sequence."""
    return {one.of: one.name for one in signature.inputs if one.role in (LENGTHS, OFFSETS)}
