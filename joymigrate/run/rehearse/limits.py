"""What a chip kernel takes, parameter by parameter: the wheel does not hold these limits.

One table names the models that lack a kernel (`kernel_models.csv`). Two say what it takes: the
better one holds what the vendor's code was recorded to answer per model (`host_answers.csv`);
where it decides nothing the vendor's documents do (`kernel_parameters.csv`).
A refusal from here is a recorded fact, never a measurement. A call's arguments get their names from
the kernel's prototype (`arguments.csv`); the tables speak of the same names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from joymigrate.chips import rules_root
from joymigrate.chips.answers import TensorAnswer, answers_for, read_answers
from joymigrate.chips.slow_kernels import read_slow, slow_for
from joymigrate.language import Text
from joymigrate.run.rehearse.constraints import (
    ALL,
    ANY,
    DOCUMENTED,
    RANK,
    SHAPES,
    BrokenRelation,
    Call,
    KernelFamily,
    ScalarArgument,
    TensorArgument,
    Tensors,
    compare,
    flat_tensors,
    judge,
    read_arguments,
    read_constraints,
    read_prototype,
)
from joymigrate.run.rehearse.constraints import (
    DTYPES as OF_DTYPES,
)
from joymigrate.run.rehearse.settings import HOST_MODELS
from joymigrate.schema import read_yaml

ANSWERS = Path("ascend") / "ops" / "host_answers.csv"
TABLE = Path("ascend") / "ops" / "kernel_parameters.csv"
SLOW = Path("ascend") / "ops" / "kernel_aicpu.csv"
ABSENT = Path("ascend") / "ops" / "kernel_models.csv"
DOCUMENTS = "ops-nn e5c3fa9, ops-math c419332, ops-transformer c29bc10, ops-cv 6ae8765 (2025-11)"
MODELS = Path("ascend") / "kernels" / "models.yaml"
CONSTRAINTS = Path("ascend") / "kernels" / "families"
ARGUMENTS = Path("ascend") / "kernels" / "arguments.csv"


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One tensor of a kernel: the dtypes that it takes, empty where the documents don't say."""

    name: str
    dtypes: frozenset[str]
    written: bool  # a result
    source: str


@dataclass(frozen=True, slots=True)
class DtypeRefusal:
    """One dtype that a parameter of a kernel is documented not to take; without a dtype the chip
    model lacks the kernel."""

    kernel: str
    parameter: str
    dtype: str
    takes: tuple[str, ...]
    source: str
    grade: str = DOCUMENTED

    @property
    def message(self) -> Text:
        """What is refused, in one clause."""
        if not self.dtype:
            return Text("{kernel} is not there on this model of the chip", kernel=self.kernel)
        if not self.parameter:
            return Text("{kernel} takes no {dtype}", kernel=self.kernel, dtype=self.dtype)
        if not self.takes:
            return Text(
                "{kernel} takes no {dtype} as {parameter}",
                kernel=self.kernel,
                dtype=self.dtype,
                parameter=self.parameter,
            )
        return Text(
            "{kernel} takes no {dtype} as {parameter} (it takes {takes})",
            kernel=self.kernel,
            dtype=self.dtype,
            parameter=self.parameter,
            takes=", ".join(self.takes),
        )


@cache
def read_absent(path: Path) -> Mapping[str, tuple[frozenset[str], str]]:
    """Kernels that some models lack: these models, and the document that says so."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["kernel"]: (frozenset(row["models"].split()), row["source"])
            for row in csv.DictReader(file)
        }


@dataclass(frozen=True, slots=True)
class DeepTensor:
    """A tensor with too many dimensions for a kernel."""

    kernel: str
    dimensions: int
    most: int
    source: str
    dtype: str = ""
    grade: str = DOCUMENTED

    @property
    def message(self) -> Text:
        """What is refused, in one clause."""
        return Text(
            "{kernel} takes at most {most} dimensions, this tensor has {dimensions}",
            kernel=self.kernel,
            most=self.most,
            dimensions=self.dimensions,
        )


@cache
def read_parameters(path: Path) -> Mapping[str, tuple[KernelParameter, ...]]:
    """What each kernel reads, in the order of its arguments."""
    found: dict[str, list[KernelParameter]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            written = row["role"] == "out"  # the documents often leave out some of its dtypes
            open_ended = written or row.get("part")  # the rest of a part is not said
            dtypes = frozenset(() if open_ended else row["dtypes"].split())
            one = KernelParameter(row["parameter"], dtypes, written, row["source"])
            found.setdefault(row["kernel"], []).append(one)
    return {kernel: tuple(parameters) for kernel, parameters in found.items()}


@dataclass(frozen=True, slots=True)
class InnerAxis:
    """The unit in bytes of an axis that a model's matrix products read at full speed."""

    bytes: int
    source: str


class Limits:
    """What one chip model takes."""

    def __init__(self, soc: str, path: Path | None = None, answers: Path | None = None) -> None:
        self.parameters = read_parameters(path or rules_root() / TABLE)
        model = next((m for start, m in HOST_MODELS.items() if soc.startswith(start)), "")
        self.answers = answers_for(read_answers(answers or rules_root() / ANSWERS), model)
        self.slow_kernels = slow_for(read_slow(rules_root() / SLOW), model)
        absent = read_absent(rules_root() / ABSENT)
        self.absent = {kernel: source for kernel, (on, source) in absent.items() if model in on}
        self.inner_axis = read_inner_axis(model)
        self.lacking = read_lacking(soc)
        self.silent = frozenset(read_models()["silent"].split())
        self.made_here = frozenset(read_models()["made_here"])
        self.relations = read_constraints(rules_root() / CONSTRAINTS)
        self.arguments = read_arguments(rules_root() / ARGUMENTS)

    def refused(self, forms: Sequence[str]) -> list[Refused]:
        """What the kernels of one operator would refuse; `forms` are theirs (Shim.forms)."""
        return self.judged(forms)[1]

    def judged(self, forms: Sequence[str]) -> tuple[frozenset[str], list[Refused]]:
        """The same with the kinds of limits that were compared; dtypes and shapes are where those
        of every kernel were."""
        kinds: frozenset[str] = frozenset()
        lacking: frozenset[str] = frozenset()
        found: dict[str, Refused] = {}
        for form in forms:
            kernel, *tokens = form.split()
            compared, refusal = self.judge(kernel, [value_of_token(one) for one in tokens])
            kinds |= compared
            if kernel not in self.silent:
                lacking |= {OF_DTYPES, SHAPES} - compared
            if refusal is not None:
                found.setdefault(str(refusal.message), refusal)
        return kinds - lacking, list(found.values())

    def slow(self, forms: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """Kernels of one operator that run on the chip's own CPU, and who says so."""
        found: dict[str, str] = {}
        for form in forms:
            kernel, *tokens = form.split()
            first = next((one for one in tokens if one[0] in "TL"), "")
            dtypes = dtypes_of(value_of_token(first)) if first else ("",)
            row = self.slow_kernels.get((kernel, next(iter(dtypes), "")))
            if row is not None:
                found.update(dict.fromkeys(row.slow, row.source))
        return tuple(found), next(iter(found.values()), "")

    def too_deep(self, kernel: str, most: int) -> DeepTensor | None:
        """A tensor of more dimensions than a kernel was recorded to take."""
        own = [one for one in self.answers.get(kernel, ()) if one.most]
        if own and most > own[0].most:
            return DeepTensor(kernel, most, own[0].most, own[0].source)
        return None

    def refused_call(
        self,
        kernel: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Refused | None:
        """What is refused of a whole call, or None. Arguments are in the order of the kernel's own:
        tensors as mappings with `dtype` or `number` (aclDataType) and `shape`, lists of them, None
        where an optional one is left out, and attributes as text or numbers."""
        given = [value_of_argument(one) for one in (*inputs, *outputs)]
        return self.judge(kernel, given, floats=True)[1]

    def refused_operator(
        self, name: str, call: Call
    ) -> tuple[frozenset[str], BrokenRelation | None]:
        """Which kinds of limits were compared of an operator's call, and the first that it breaks;
        arguments by their names in its schema."""
        base = name.partition(".")[0]
        return judge(base, self.relations.get(base, ()), call)

    def judge(
        self, kernel: str, given: Sequence[Any], *, floats: bool = False
    ) -> tuple[frozenset[str], Refused | None]:
        """Which kinds of limits were compared of a kernel's call, and the first that it breaks.
        `given` are its arguments in order; floating-point numbers are there only if `floats`."""
        if not floats:  # the package hands over an empty tensor for one that is left out
            given = [None if is_left_out(one) else one for one in given]
        families = self.relations.get(kernel, ())
        first = self.named(kernel, given, (), floats)
        refusal = self.refused_by(kernel, given, first)
        kinds = frozenset({OF_DTYPES} if self.knows_dtypes(kernel, first) else ())
        if any(one.most for one in self.answers.get(kernel, ())):
            kinds |= {RANK}
        if refusal is not None:
            return kinds, refusal
        flat = tuple(flat_tensors(given))
        deep = self.too_deep(kernel, max((one.rank for one in flat), default=0))
        if deep is not None:
            return kinds, deep
        call = self.named(kernel, given, families, floats) or {ALL: flat}
        compared, broken = judge(kernel, families, call)
        if broken is None:  # what holds of every kernel refuses, and never says that it compared
            broken = compare(kernel, self.relations.get(ANY, ()), call)[1]
        return kinds | compared, broken

    def named(
        self, kernel: str, given: Sequence[Any], families: Sequence[KernelFamily], floats: bool
    ) -> Call:
        """The arguments of a call by name. Where some are not known, the tensors alone; nothing
        where their number does not say which is which."""
        own = next((one.arguments for one in families if one.arguments), "")
        prototype = read_prototype(own) if own else self.arguments.get(kernel, ())
        known = prototype if floats else [one for one in prototype if one[1] != "f"]
        if known and len(known) == len(given):
            pairs = zip(known, given, strict=True)
            call = {name: value_as(kind, value) for (name, kind), value in pairs}
        else:
            there = [one for one in given if isinstance(one, (TensorArgument, Tensors))]
            names = [name for name, kind in prototype if kind in "TL"]
            if not names:
                answers = self.answers.get(kernel) or self.parameters.get(kernel, ())
                names = [
                    one.name if isinstance(one, KernelParameter) else one.parameter
                    for one in answers
                ]
            call = dict(zip(names, there, strict=True)) if len(names) == len(there) else {}
        if not floats:  # a real call: what the rehearsal itself made has another form
            call = {name: v for name, v in call.items() if f"{kernel} {name}" not in self.made_here}
        return call

    def refused_by(self, kernel: str, given: Sequence[Any], call: Call) -> DtypeRefusal | None:
        """What one kernel refuses of its tensors' dtypes, or the model of the kernel. The recorded
        answer of the host code decides; where it decides nothing the document does."""
        if kernel in self.absent:
            return DtypeRefusal(kernel, "", "", (), self.absent[kernel])
        lacking = [dtype for one in given for dtype in dtypes_of(one) if dtype in self.lacking]
        if lacking:
            return DtypeRefusal(kernel, "", lacking[0], (), self.lacking[lacking[0]])
        if kernel in self.silent:
            return None
        answers = {one.parameter: one for one in self.answers.get(kernel, ())}
        documents = {one.name: one for one in self.parameters.get(kernel, ())}
        dtypes = [(name, dtype) for name, one in call.items() for dtype in dtypes_of(one)]
        for name, dtype in dtypes:
            one = answers.get(name)
            if one is None or dtype not in one.refuses:
                continue
            if one.takes or not self.documented(kernel, one, dtype):
                return DtypeRefusal(kernel, name, dtype, tuple(sorted(one.takes)), one.source)
        for name, dtype in dtypes:
            document = documents.get(name)
            if document is None or not document.dtypes or dtype in document.dtypes:
                continue
            if name not in answers or dtype not in answers[name].takes:  # it knows better
                takes = tuple(sorted(document.dtypes))
                return DtypeRefusal(kernel, name, dtype, takes, f"{document.source}, {DOCUMENTS}")
        return None

    def knows_dtypes(self, kernel: str, call: Call) -> bool:
        """Whether a row says of every tensor that a kernel is given which dtypes it takes; those of
        its results the package chooses."""
        known = {p.name for p in self.parameters.get(kernel, ()) if p.dtypes or p.written}
        known |= {a.parameter for a in self.answers.get(kernel, ())}
        given = [name for name, one in call.items() if dtypes_of(one)]
        return bool(given) and kernel not in self.silent and known.issuperset(given)

    def documented(self, kernel: str, answer: TensorAnswer, dtype: str) -> bool:
        """Whether the documents list a dtype for a tensor of which no call was seen to be taken:
        the refusal may then be about something else."""
        own = [p for p in self.parameters.get(kernel, ()) if p.name == answer.parameter]
        return any(dtype in parameter.dtypes for parameter in own)


Refused = DtypeRefusal | DeepTensor | BrokenRelation


@cache
def read_models() -> Mapping[str, Any]:
    """What is known of all kernels: dtypes that models lack, the numbers of dtypes and formats."""
    document: Mapping[str, Any] = read_yaml(rules_root() / MODELS)
    return document


def read_inner_axis(model: str) -> InnerAxis | None:
    """What a matrix product of a model wants of its inner axes; None where nobody says it."""
    row = read_models()["inner_axis"]
    return InnerAxis(row["bytes"], row["source"]) if model in row["models"] else None


def read_lacking(soc: str) -> Mapping[str, str]:
    """Dtypes that no kernel of a model takes, and who says so."""
    return {
        dtype: row["source"]
        for row in read_models()["lacking"]
        if not row["models"] or soc.startswith(tuple(row["models"]))
        for dtype in row["dtypes"]
    }


def dtype_of_number(number: int | str) -> str:
    """The dtype that an aclDataType stands for; empty where nobody knows it."""
    return str(read_models()["dtypes"].get(int(number), ""))


def value_of_token(token: str) -> Any:
    """An argument of a form (shim/kernels.c): `T0/2/3x4` (sizes may be missing), `L0/2/3x4;0/1/5` a
    list, `A2,2` numbers, `S0/5.9` a scalar, `W7` any other word."""
    kind, text = token[0], token[1:]
    if kind == "A":
        return tuple(int(one) for one in text.split(",") if one) or ()
    if kind == "S":
        number, _, value = text.partition("/")
        return ScalarArgument(dtype_of_number(number), float(value))
    if kind == "W":
        return int(text)
    if kind == "L":
        return Tensors(tensor_of_token(one) for one in text.split(";") if one)
    return tensor_of_token(text)


def tensor_of_token(text: str) -> TensorArgument:
    """A tensor of a form: dtype, number of dimensions, sizes and a format of the chip's own."""
    number, count, *more = text.split("/")
    sizes = more[0].split("x") if more and more[0] else []
    shape = tuple(map(int, sizes)) if more else (1,) * int(count)
    named = read_models()["formats"].get(int(more[1]), more[1]) if len(more) > 1 else "ND"
    return TensorArgument(dtype_of_number(number), shape, named)


def is_left_out(value: Any) -> bool:
    """Whether a real call's argument stands for none: an empty tensor, or a list of such alone."""
    if isinstance(value, Tensors):
        return all(one.shape == (0,) for one in value)
    return isinstance(value, TensorArgument) and value.shape == (0,)


def value_as(kind: str, value: Any) -> Any:
    """A word of a real call as its declared type; None where nobody knows or it is left out."""
    if type(value) is not int:
        return value
    if kind == "b":
        return bool(value & 0xFF)
    bits = {"i": 64, "w": 32, "c": 8}.get(kind)
    if bits is None:
        return None  # a pointer: of a tensor that is left out, of text
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


SCALAR = re.compile(
    r"scalar\((?:static_cast<(\w+)>\()?\(?(-?[\d.]+(?:e-?\d+)?)(f?)\)?\)?(?:, .*)?\)"
)
ARRAY = re.compile(r"IntArrayDesc\(([-\d, ]*)\)")


def value_of_argument(raw: Any) -> Any:
    """An argument as `Limits.refused_call` takes it; None where its text says no value."""
    if raw is None or isinstance(raw, (int, float)):
        return raw
    if isinstance(raw, Mapping):
        return tensor_of(raw)
    if isinstance(raw, (list, tuple)):
        return Tensors(tensor_of(part) for part in raw)
    text = str(raw).strip("()") if re.fullmatch(r"\(-?\d+\)", str(raw)) else str(raw)
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+L?", text):
        return int(text.rstrip("L"))
    if re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?f?", text):
        return float(text.rstrip("f"))
    if text.startswith('"'):
        return text.strip('"')
    array = ARRAY.fullmatch(text)
    if array:
        return tuple(int(one) for one in array[1].split(",") if one.strip())
    number = SCALAR.fullmatch(text)
    if number:
        whole = "." not in number[2] and "e" not in number[2] and not number[3]
        cast = (number[1] or ("int64" if whole else "float")).removesuffix("_t")
        return ScalarArgument(
            {"float": "float32", "double": "float64"}.get(cast, cast), float(number[2])
        )
    return read_models()["written"].get(text.removeprefix("ACL_"))


def tensor_of(raw: Mapping[str, Any]) -> TensorArgument:
    """A tensor from a mapping with its dtype, by number (aclDataType) or by name, its shape, and
    its format where it has one."""
    dtype = dtype_of_number(raw["number"]) if "number" in raw else str(raw["dtype"])
    return TensorArgument(dtype, tuple(raw["shape"]), str(raw.get("format", "ND")))


def dtypes_of(value: Any) -> tuple[str, ...]:
    """The dtypes of a tensor or of a list's tensors, each once. The package fills gaps of a list
    with tensors without elements: they count only where there is no other."""
    every = value if isinstance(value, Tensors) else (value,)
    tensors = [one for one in every if isinstance(one, TensorArgument) and one.dtype]
    filled = [one for one in tensors if one.numel] or tensors
    return tuple(dict.fromkeys(one.dtype for one in filled))
