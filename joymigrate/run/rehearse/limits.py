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
from joymigrate.run.rehearse.settings import HOST_MODELS

ANSWERS = Path("ascend") / "ops" / "host_answers.csv"
TABLE = Path("ascend") / "ops" / "kernel_parameters.csv"
SLOW = Path("ascend") / "ops" / "kernel_aicpu.csv"
ABSENT = Path("ascend") / "ops" / "kernel_models.csv"
DOCUMENTS = "ops-nn e5c3fa9, ops-math c419332, ops-transformer c29bc10, ops-cv 6ae8765 (2025-11)"
# Chip models whose every kernel lacks a dtype, by the beginning of the model's name.
MODELS: Mapping[str, Mapping[str, str]] = {
    "Ascend910A": {"bfloat16": "Atlas training series has no BFLOAT16 (kernel documents)"},
    "Ascend910Pro": {"bfloat16": "Atlas training series has no BFLOAT16 (kernel documents)"},
    "Ascend310P": {"bfloat16": "Atlas inference series has no BFLOAT16 (kernel documents)"},
    "Ascend310B": {"bfloat16": "Atlas 200I/500 A2 has no BFLOAT16 (kernel documents)"},
}
# Every one but the 950 series: aclnnCast and aclnnInplaceCopy list no eight-bit floats for them.
EIGHT_BITS = ("float8_e5m2", "float8_e4m3fn", "hifloat8")
NO_EIGHT_BITS = "no float8 before Atlas 350 (documents of aclnnCast, aclnnInplaceCopy)"
# These make or move bytes, or are refused by the package itself. A dropout mask is drawn by shape
# alone, and is packed bits (uint8) on the chip, where ours is one bool per element.
SILENT = (
    *("aclnnInplaceCopy", "aclnnCast", "aclnnInplaceZero", "aclnnInplaceFillScalar"),
    *("aclnnDropoutGenMask", "aclnnDropoutGenMaskV2", "aclnnDropoutDoMask"),
)


MOST_DIMENSIONS = 8
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
    dtype: str = ""
    source: str = 'the kernels\' host code: "cannot be larger than 8 dimensions" (ops-math c419332)'
    most: int = MOST_DIMENSIONS

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
        self.model: dict[str, str] = dict.fromkeys(EIGHT_BITS, NO_EIGHT_BITS)
        for beginning, lacking in MODELS.items():
            if soc.startswith(beginning):
                self.model.update(lacking)

    def judges(self, kernels: Sequence[str]) -> bool:
        """Whether a table says something about every one of these kernels."""
        tables = (self.parameters, self.answers, self.absent)
        known = [any(k in one for one in tables) for k in kernels if k not in SILENT]
        return bool(kernels) and all(known)

    def refused(self, forms: Sequence[str]) -> list[Refusal | DeepTensor]:
        """What the kernels of one operator would refuse; `forms` are theirs (Shim.forms)."""
        found: dict[Any, Refusal | DeepTensor] = {}
        for form in forms:
            kernel, *tensors = form.split()
            deep = self.too_deep(form)
            if deep is not None:
                found.setdefault(kernel, deep)
            dtypes = [DTYPES.get(int(one[1:].split("/")[0]), "") for one in tensors]
            for refusal in self.refused_by(kernel, dtypes):
                found.setdefault((refusal.kernel, refusal.parameter, refusal.dtype), refusal)
        return list(found.values())

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

    def too_deep(self, form: str) -> DeepTensor | None:
        """A tensor of more dimensions than any kernel takes."""
        kernel, *tensors = form.split()
        depths = [int(one.split("/")[1]) for one in tensors if one[0] == "T"]
        most = max(depths, default=0)
        own = [one.most for one in self.answers.get(kernel, ()) if one.most]
        if own and most > own[0]:
            return DeepTensor(kernel, most, source=self.answers[kernel][0].source, most=own[0])
        return DeepTensor(kernel, most) if most > MOST_DIMENSIONS else None

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
