"""What a chip kernel takes, parameter by parameter: the wheel does not hold these limits.

One table names the models that lack a kernel (`kernel_models.csv`). Two say what it takes: the
better one holds what the vendor's code was recorded to answer per model (`host_answers.csv`);
where it decides nothing the vendor's documents do (`kernel_parameters.csv`).
A refusal from here is a recorded fact, never a measurement. It is silent where it can't know: the
tables name parameters, a call has tensors in order with optional ones left out, so a dtype is only
called refused where no way to match the two takes it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from joymigrate.chips import rules_root
from joymigrate.chips.answers import TensorAnswer, align, answers_for, read_answers
from joymigrate.chips.slow_kernels import read_slow, slow_for
from joymigrate.language import Text
from joymigrate.run.rehearse.constraints import (
    DTYPES as OF_DTYPES,
)
from joymigrate.run.rehearse.constraints import (
    RANK,
    Broken,
    Call,
    Tensor,
    deepest,
    judge,
    read_constraints,
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
# These make or move bytes, or are refused by the package itself. A dropout mask is drawn by shape
# alone, and is packed bits (uint8) on the chip, where ours is one bool per element.
SILENT = (
    *("aclnnInplaceCopy", "aclnnCast", "aclnnInplaceZero", "aclnnInplaceFillScalar"),
    *("aclnnDropoutGenMask", "aclnnDropoutGenMaskV2", "aclnnDropoutDoMask"),
)


FEW = 3  # tensors that may be absent though their document calls them required
# Tensors that the rehearsal makes in another form than the chip, so that their dtype says nothing:
# pooling keeps int64 positions here, and a packed mask or int32 there.
OF_OUR_MAKING = frozenset(
    {
        ("aclnnMaxPool2dWithMaskBackward", "indices"),
        ("aclnnMaxPool2dWithIndicesBackward", "indices"),
        ("aclnnMaxPool3dWithArgmaxBackward", "indices"),
        ("aclnnAdaptiveMaxPool2dBackward", "indices"),
        ("aclnnAdaptiveMaxPool3dBackward", "indices"),
    }
)
# Kernels whose tensors would be refused for that form; a dropout mask is one of them.
UNLIKE_CHIP = frozenset({"aclnnDropoutDoMask", *(kernel for kernel, _ in OF_OUR_MAKING)})
# aclDataType, as the package hands it to a kernel.
DTYPES = {
    0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16",
    8: "uint32", 9: "int64", 10: "uint64", 11: "float64", 12: "bool", 16: "complex64",
    17: "complex128", 27: "bfloat16", 29: "int4", 33: "complex32", 34: "hifloat8",
    35: "float8_e5m2", 36: "float8_e4m3fn",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a kernel: the dtypes that it takes, empty where the documents don't say."""

    name: str
    dtypes: frozenset[str]
    optional: bool
    source: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """One dtype that a parameter of a kernel is documented not to take; without a dtype the chip
    model lacks the kernel."""

    kernel: str
    parameter: str
    dtype: str
    takes: tuple[str, ...]
    source: str

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
def read_parameters(path: Path) -> Mapping[str, tuple[Parameter, ...]]:
    """What each kernel reads, in the order of its arguments."""
    found: dict[str, list[Parameter]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["role"] != "in":  # the documents often leave out some of what is written
                continue
            one = Parameter(
                row["parameter"], frozenset(row["dtypes"].split()), row["optional"] == "yes",
                row["source"],
            )  # fmt: skip
            found.setdefault(row["kernel"], []).append(one)
    return {kernel: tuple(parameters) for kernel, parameters in found.items()}


@cache
def read_results(path: Path) -> Mapping[str, int]:
    """How many tensors each kernel writes that it does not read."""
    with path.open(encoding="utf-8", newline="") as file:
        return Counter(row["kernel"] for row in csv.DictReader(file) if row["role"] == "out")


class Limits:
    """What one chip model takes."""

    def __init__(self, soc: str, path: Path | None = None, answers: Path | None = None) -> None:
        self.parameters = read_parameters(path or rules_root() / TABLE)
        self.results = read_results(path or rules_root() / TABLE)
        model = next((m for start, m in HOST_MODELS.items() if soc.startswith(start)), "")
        self.answers = answers_for(read_answers(answers or rules_root() / ANSWERS), model)
        self.slow_kernels = slow_for(read_slow(rules_root() / SLOW), model)
        absent = read_absent(rules_root() / ABSENT)
        self.absent = {kernel: source for kernel, (on, source) in absent.items() if model in on}
        self.model = read_lacking(rules_root() / MODELS, soc)
        self.relations = read_constraints(rules_root() / CONSTRAINTS)

    def judges(self, kernels: Sequence[str]) -> bool:
        """Whether a table says something about every one of these kernels."""
        tables = (self.parameters, self.answers, self.absent)
        known = [any(k in one for one in tables) for k in kernels if k not in SILENT]
        return bool(kernels) and all(known)

    def refused(self, forms: Sequence[str]) -> list[Refused]:
        """What the kernels of one operator would refuse; `forms` are theirs (Shim.forms)."""
        return self.judged(forms)[1]

    def judged(self, forms: Sequence[str]) -> tuple[frozenset[str], list[Refused]]:
        """The same with the kinds of limits that were compared of any of the kernels."""
        kinds: frozenset[str] = frozenset()
        found: dict[str, Refused] = {}
        for form in forms:
            kernel, *tokens = form.split()
            compared, refusal = self.judge(kernel, call_of_form(tokens))
            kinds |= compared
            if refusal is not None:
                found.setdefault(str(refusal.message), refusal)
        return kinds, list(found.values())

    def slow(self, forms: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """Kernels of one operator that run on the chip's own CPU, and who says so."""
        found: dict[str, str] = {}
        for form in forms:
            kernel, *tensors = form.split()
            dtype = DTYPES.get(int(tensors[0][1:].split("/")[0]), "") if tensors else ""
            row = self.slow_kernels.get((kernel, dtype))
            if row is not None:
                found.update(dict.fromkeys(row.slow, row.source))
        return tuple(found), next(iter(found.values()), "")

    def too_deep(self, kernel: str, most: int) -> DeepTensor | None:
        """A tensor of more dimensions than a kernel was recorded to take."""
        own = [one for one in self.answers.get(kernel, ()) if one.most]
        if own and most > own[0].most:
            return DeepTensor(kernel, most, own[0].most, own[0].source)
        return None

    def names_of(self, kernel: str, call: Call) -> list[str]:
        """The parameters of a call's slots; none where their number does not say which is which."""
        declared = self.answers.get(kernel) or self.parameters.get(kernel, ())
        for known in (declared, [one for one in declared if one.optional not in ("yes", True)]):
            if known and len(known) == len(call.slots):
                return [getattr(one, "parameter", "") or getattr(one, "name", "") for one in known]
        return []

    def refused_call(
        self,
        kernel: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Refused | None:
        """What is refused of a whole call, or None. Arguments are in the order of the kernel's own:
        tensors as mappings with `dtype` or `number` (aclDataType) and `shape`, lists of them, None
        where an optional one is left out, and attributes as text or numbers."""
        call = call_of([*inputs, *outputs])
        return self.judge(kernel, call)[1]

    def judge(self, kernel: str, call: Call) -> tuple[frozenset[str], Refused | None]:
        """Which kinds of limits were compared, and the first that the call breaks."""
        kinds = {OF_DTYPES} if self.judges([kernel]) and kernel not in SILENT else set()
        flat = [s[0] if isinstance(s, tuple) and s else s for s in call.there]
        dtypes = [one.dtype if isinstance(one, Tensor) else "" for one in flat]
        refusals = self.refused_by(kernel, dtypes)
        if any(one.most for one in self.answers.get(kernel, ())):
            kinds.add(RANK)
        if refusals:
            return frozenset(kinds), refusals[0]
        deep = self.too_deep(kernel, deepest(call))
        if deep is not None:
            return frozenset(kinds), deep
        names = self.names_of(kernel, call)
        compared, broken = judge(kernel, self.relations.get(kernel, ()), call, names)
        return frozenset(kinds) | compared, broken

    def refused_by(self, kernel: str, dtypes: Sequence[str]) -> list[Refusal]:
        """What one kernel would refuse of the dtypes of its tensors, in order."""
        if kernel in self.absent:
            return [Refusal(kernel, "", "", (), self.absent[kernel])]
        lacking = [dtype for dtype in dtypes if dtype in self.model]
        if lacking:
            return [Refusal(kernel, "", lacking[0], (), self.model[lacking[0]])]
        answered = self.answered_by(kernel, dtypes)
        if answered is not None:
            return answered
        parameters = self.parameters.get(kernel, ())
        if kernel in SILENT or not parameters:
            return []
        ways = self.ways(kernel, parameters, dtypes)
        taken = {one.parameter: one.takes for one in self.answers.get(kernel, ())}
        worst = [
            [
                (p, d)
                for p, d in way
                if refuses(p, d)
                and (kernel, p.name) not in OF_OUR_MAKING
                and d not in taken.get(p.name, ())  # the host code is better than its document
            ]
            for way in ways
        ]
        if not worst or not all(worst):
            return []
        return [
            Refusal(kernel, p.name, d, tuple(sorted(p.dtypes)), f"{p.source}, {DOCUMENTS}")
            for p, d in min(worst, key=len)[:1]  # one call is one refusal
        ]

    def ways(
        self, kernel: str, parameters: Sequence[Parameter], dtypes: Sequence[str]
    ) -> list[list[tuple[Parameter, str]]]:
        """Every way to give the tensors to parameters; none where too many are absent to know.

        Some that a document calls required may not be there: gradients that nothing asks for.
        """
        required = [one for one in parameters if not one.optional]
        least = len(required) + self.results.get(kernel, 0) - len(dtypes)
        if least <= 0:
            return matches(parameters, dtypes)
        most = least + len(parameters) - len(required)  # as many optional ones may be there
        if least > FEW:
            return []
        return [
            way
            for absent in range(least, min(most, FEW) + 1)
            for gone in combinations(required, absent)
            for way in matches([one for one in parameters if one not in gone], dtypes)
        ]

    def answered_by(self, kernel: str, dtypes: Sequence[str]) -> list[Refusal] | None:
        """The same by the recorded answers of the host code; None where they decide nothing."""
        if kernel in SILENT or kernel in UNLIKE_CHIP or kernel not in self.answers:
            return None
        fitted = align(self.answers[kernel], dtypes)
        if not fitted:
            return None
        refused = [
            (one, dtype)
            for one, dtype in fitted
            if dtype in one.refuses and (one.takes or not self.documented(kernel, one, dtype))
        ]
        if refused:
            one, dtype = refused[0]  # one call is one refusal
            takes = tuple(sorted(one.takes))
            return [Refusal(kernel, one.parameter, dtype, takes, one.source)]
        return [] if all(dtype in one.takes for one, dtype in fitted) else None

    def documented(self, kernel: str, answer: TensorAnswer, dtype: str) -> bool:
        """Whether the documents list a dtype for a tensor of which no call was seen to be taken:
        the refusal may then be about something else."""
        own = [p for p in self.parameters.get(kernel, ()) if p.name == answer.parameter]
        return any(dtype in parameter.dtypes for parameter in own)


Refused = Refusal | DeepTensor | Broken


@cache
def read_lacking(path: Path, soc: str) -> Mapping[str, str]:
    """Dtypes that no kernel of a model takes, and who says so."""
    rows = read_yaml(path)["lacking"]
    return {
        dtype: row["source"]
        for row in rows
        if not row["models"] or soc.startswith(tuple(row["models"]))
        for dtype in row["dtypes"]
    }


def call_of_form(tokens: Sequence[str]) -> Call:
    """A call from the tokens of a form: `T0/2/3x4`, `L0/2`; sizes may be missing."""
    slots: list[Any] = []
    for token in tokens:
        if token[0] not in "TL":
            continue
        number, count, *sizes = token[1:].split("/")
        dtype = DTYPES.get(int(number), "")
        if token[0] == "L":
            slots.append((Tensor(dtype, ()),) * max(int(count), 1))
            continue
        known = sizes[0].split("x") if sizes and sizes[0] else []
        shape = tuple(map(int, known)) if sizes else (1,) * int(count)
        slots.append(Tensor(dtype, shape))
    return Call(tuple(slots))


def call_of(arguments: Sequence[Any]) -> Call:
    """A call from its arguments one by one (see `Limits.refused_call`)."""
    slots: list[Any] = []
    arrays, numbers = [], []
    for one in arguments:
        if one is None:
            slots.append(None)
        elif isinstance(one, Mapping):
            slots.append(tensor_of(one))
        elif isinstance(one, (list, tuple)):
            slots.append(tuple(tensor_of(part) for part in one))
        elif isinstance(one, int) or re.fullmatch(r"-?\d+", str(one)):
            numbers.append(int(one))
        else:
            array = re.fullmatch(r"IntArrayDesc\(([-\d, ]*)\)", str(one))
            if array:
                arrays.append(tuple(int(v) for v in array[1].split(",") if v.strip()))
    return Call(tuple(slots), tuple(arrays), tuple(numbers))


def tensor_of(raw: Mapping[str, Any]) -> Tensor:
    """A tensor from a mapping with its dtype, by number (aclDataType) or by name, and its shape."""
    dtype = DTYPES.get(raw["number"], "") if "number" in raw else str(raw["dtype"])
    return Tensor(dtype, tuple(raw["shape"]))


def refuses(parameter: Parameter, dtype: str) -> bool:
    """Whether the documents exclude a dtype: not where they or we don't know."""
    return bool(dtype and parameter.dtypes) and dtype not in parameter.dtypes


def matches(
    parameters: Sequence[Parameter], dtypes: Sequence[str]
) -> list[list[tuple[Parameter, str]]]:
    """Every way to give the first tensors to parameters in order, leaving out optional ones only;
    the tensors that are left over are results.

    Empty where none fits: the documents then speak of another form of the kernel.
    """
    if not parameters:
        return [[]]
    first, rest = parameters[0], parameters[1:]
    ways = [[(first, dtypes[0]), *way] for way in matches(rest, dtypes[1:])] if dtypes else []
    return ways + (matches(rest, dtypes) if first.optional else [])
