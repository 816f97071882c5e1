"""A systematic grid of questions: which dtypes and how many dimensions each tensor of a kernel may
have on a chip model, as the vendor's host code answers.

A call that the host code takes is searched first, by doing what its refusals ask for. From there
one tensor at a time gets another dtype: alone, together with those of the same dtype, and together
with all others. A dtype is `taken` where one of these calls succeeds, `refused` where the host code
says that it is not in a tensor's list and no such call succeeds, and else it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.chips.answers import TensorAnswer
from joymigrate.run.rehearse.host_checks.ask import (
    CRASHED,
    NUMBERS,
    Answer,
    CheckLibrary,
    Form,
    ask_in_child,
)  # fmt: skip
from joymigrate.run.rehearse.host_checks.build import HostChecks
from joymigrate.run.rehearse.host_checks.declarations import TENSORS, Argument
from joymigrate.run.rehearse.host_checks.refusals import (
    EXPECTED,
    LISTED,
    SHAPED,
    SIDE,
    SPELLED,
    bare,
    dtype_text,
    dtypes_of,
    shape_in,
)  # fmt: skip

ARRAYS = ("ints", "floats", "bools")
DEPTHS = (2, 1, 3, 4, 5)  # dimensions of all tensors, tried in this order
STARTS = ("float32", "float16", "int32", "int8", "bfloat16")
NUMBERS_TRIED = (
    (1, (1, 1)),
    (0, (0,)),
    (1, (4,)),
    (1, (1,)),
    (4, (4, 4)),
)  # of plain arguments, of arrays
MOST_DEPTH = 9
POSITIONS = re.compile(r"(?i)indic|index|position")
MOST_SEARCHED = 800  # questions before a kernel counts as one that takes no call
REPAIRS = 12  # refusals that are followed before a start is given up
BASELINES = 3
CRASHES = 25  # of one kernel, before it is given up


@dataclass(frozen=True, slots=True)
class Fact:
    """What one tensor of a kernel takes; `optional` is yes, no, or empty where it is not known."""

    parameter: str
    role: str
    optional: str
    takes: tuple[str, ...]
    refuses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What one kernel answered on one model. `most` is a limit of dimensions, 0 where none was met.

    `whole` says whether the host code took a call at all; where it did not, only its refusals of
    dtypes count, and what else is in the way stands in `said`.
    """

    kernel: str
    whole: bool
    most: int
    said: str
    asked: int
    crashed: int
    tensors: tuple[Fact, ...]


@dataclass(slots=True)
class Grid:
    """The questions to one kernel; `ask` answers one of them."""

    arguments: Sequence[Argument]
    ask: Callable[[Sequence[Any]], Answer]
    takes: dict[tuple[int, str], bool] = field(default_factory=dict)
    searched: int = 0

    def run(self, kernel: str) -> Facts:
        """Ask everything."""
        bases, said = self.search()
        whole = bool(bases)
        questions = bases or self.blind()
        places = [n for n, a in enumerate(self.arguments) if a.kind in TENSORS]
        for place in places:
            for dtype in NUMBERS:
                for question in questions:
                    self.judge(question, place, dtype, whole)
        tensors = tuple(self.fact(place, bases) for place in places)
        most = self.most(bases[0]) if bases else 0
        return Facts(kernel, whole, most, "" if whole else said, 0, 0, tensors)

    def search(self) -> tuple[list[list[Any]], str]:
        """Calls that are taken, of different dtypes; and what was said where there are none."""
        found: list[list[Any]] = []
        said = ""
        for given in self.givens():
            if self.searched > MOST_SEARCHED:
                break
            for start in STARTS:
                question, answer = self.follow(self.question(start, *given))
                if answer.passed and all(question != other for other in found):
                    found.append(question)
                elif answer.refused and not said and not dtype_text(answer.text):
                    said = answer.text
                if len(found) == BASELINES:
                    return found, said
            if found:
                return found, said
        return found, said

    def givens(self) -> Iterator[tuple[int, bool, int, tuple[int, ...], bool]]:
        """Dimensions, whether optional tensors are left out, numbers, arrays, whether positions are
        whole numbers."""
        lacking = any(is_optional(a) for a in self.arguments)
        placed = any(a.kind in TENSORS and POSITIONS.search(a.name) for a in self.arguments)
        for number, array in NUMBERS_TRIED:
            for depth in DEPTHS:
                for left_out in (False, True) if lacking else (False,):
                    for whole in (True, False) if placed else (False,):
                        yield depth, left_out, number, array, whole

    def blind(self) -> list[list[Any]]:
        """Calls for kernels that take none of ours."""
        return [self.question(start, depth, False, 1, (1, 1), False)
                for start in STARTS[:2] for depth in DEPTHS[:4]]  # fmt: skip

    def question(
        self,
        dtype: str,
        depth: int,
        left_out: bool,
        number: int,
        array: tuple[int, ...],
        positions: bool,
    ) -> list[Any]:
        """A first call: everything of one dtype and shape; `positions` in int64 where asked."""
        whole = dtype.startswith(("int", "uint"))
        values: dict[str, Any] = {
            "tensor": Form((SIDE,) * depth, dtype), "scalar": Form((), "int64" if whole else
            "float32"), "ints": array, "floats": (1.0,), "bools": (True,), "text": "", "bool":
            False, "dtype": dtype, "double": 1.0, "float": 1.0,
        }  # fmt: skip
        values |= {"tensors": [values["tensor"]], "scalars": [values["scalar"]]}
        made = [
            None if left_out and is_optional(a) else values.get(a.kind, number)
            for a in self.arguments
        ]
        there = [
            place
            for place, a in enumerate(self.arguments)
            if positions and a.kind in TENSORS and POSITIONS.search(a.name) and made[place]
        ]
        return with_dtype(made, there, "int64")

    def follow(self, question: list[Any]) -> tuple[list[Any], Answer]:
        """Do what refusals ask for, until the call is taken or something else is refused."""
        answer = self.ask(question)
        for _ in range(REPAIRS):
            self.searched += 1
            mended = None if answer.passed else self.mended(question, answer.text)
            if mended is None:
                break
            question, answer = mended, self.ask(mended)
        return question, answer

    def mended(self, question: list[Any], text: str) -> list[Any] | None:
        """The call with the dtype or the shape that a refusal asks for; None where it asks for
        none."""
        return self.reshaped(question, text) or self.retyped(question, text)

    def reshaped(self, question: list[Any], text: str) -> list[Any] | None:
        """The call with the shape that a refusal asks for, or the length of an array."""
        match = next(filter(None, (one.search(text) for one in SHAPED)), None)
        if match is None:
            return None
        found = match.groupdict()
        place = self.named(found["name"], () if "count" in found else TENSORS)
        if place is None or question[place] is None:
            return None
        if "count" in found:
            wanted: Any = (*question[place][:1],) * int(found["count"])
        else:
            wanted = with_shape(question[place], shape_in(found))
        changed = [*question[:place], wanted, *question[place + 1 :]]
        return changed if changed != question else None

    def retyped(self, question: list[Any], text: str) -> list[Any] | None:
        """The call with the dtype that a refusal asks for."""
        match = LISTED.search(text) or EXPECTED.search(text)
        takes = dtypes_of(match["takes"]) if match else ()
        place = self.named(match["name"]) if match else None
        if place is None or not takes or question[place] is None:
            return None
        return with_dtype(question, [place], takes[0])

    def named(self, name: str, kinds: Sequence[str] = TENSORS) -> int | None:
        """The tensor that a message names; without `kinds`, the array."""
        word = bare(re.split(r"[.>]", name)[-1])
        for place, argument in enumerate(self.arguments):
            if argument.kind in (kinds or ARRAYS) and bare(argument.name) == word:
                return place
        return None

    def judge(self, base: list[Any], place: int, dtype: str, whole: bool) -> None:
        """Ask for one dtype of one tensor, alone and in company."""
        if base[place] is None or self.takes.get((place, dtype)):
            return
        own = dtype_in(base[place])
        tensors = [n for n, a in enumerate(self.arguments) if a.kind in TENSORS and base[n]]
        tied = [n for n in tensors if dtype_in(base[n]) == own]
        for group in groups(place, tied, tensors, whole):
            question = with_dtype(base, group, dtype)
            answer = self.ask(question)
            if answer.status == 0:
                self.takes[place, dtype] = True
                return
            match = LISTED.search(answer.text) if answer.refused else None
            if match is None or SPELLED.get(match["dtype"]) != dtype:
                continue
            if dtype in dtypes_of(match["takes"]):  # it speaks of something else
                continue
            # Alone among tensors that were taken it can only be this one.
            alone = whole and group == [place]
            if alone or self.named(match["name"]) == place:
                self.takes.setdefault((place, dtype), False)

    def fact(self, place: int, bases: Sequence[list[Any]]) -> Fact:
        """What was learned of one tensor."""
        argument = self.arguments[place]
        known = {dtype: taken for (at, dtype), taken in self.takes.items() if at == place}
        taken = tuple(d for d in NUMBERS if known.get(d) is True)
        refused = tuple(d for d in NUMBERS if known.get(d) is False)
        optional = self.optional(place, bases)
        return Fact(argument.name, argument.role, optional, taken, refused)

    def optional(self, place: int, bases: Sequence[list[Any]]) -> str:
        """Whether a call is taken without this tensor."""
        answers = []
        for base in bases:
            if base[place] is None:
                return "yes"
            question = [*base[:place], None, *base[place + 1 :]]
            answers.append(self.ask(question))
        if any(answer.status == 0 for answer in answers):
            return "yes"
        return "no" if answers and all(a.status == 161001 for a in answers) else ""

    def most(self, base: list[Any]) -> int:
        """The most dimensions that are taken, where one more is refused for its dimensions."""
        taken = 0
        for depth in range(1, MOST_DEPTH + 1):
            answer = self.ask([deeper(value, depth) for value in base])
            if answer.status == 0:
                taken = depth
            elif taken == depth - 1 and taken > 2 and answer.refused:
                return taken if "dim" in answer.text.lower() else 0
        return 0


def groups(
    place: int, tied: Sequence[int], tensors: Sequence[int], whole: bool
) -> Iterator[list[int]]:
    """The tensors that get another dtype at once: one alone, those of its dtype, all; from a
    `whole` call also one with one other, and all but one (positions stay whole numbers while the
    rest changes)."""
    others = [n for n in tensors if n != place]
    yield [place]
    yield [*tied]
    yield [*tensors]
    if whole:
        yield from ([place, other] for other in others)
    if whole and len(others) > 2:
        yield from ([n for n in tensors if n != other] for other in others)


def ask_kernel(library: CheckLibrary, kernel: str, arguments: Sequence[Argument]) -> Facts | None:
    """The whole grid of one kernel, in processes of its own; None where it crashes too often."""
    crashed: set[str] = set()

    def work(tell: Callable[[Any], None]) -> None:
        known = dict.fromkeys(crashed, CRASHED)

        def ask(question: Sequence[Any]) -> Answer:
            key = repr(question)
            if key not in known:
                tell({"asking": key})
                known[key] = library.ask(kernel, arguments, question)
            return known[key]

        facts = Grid(arguments, ask).run(kernel)
        tell({"facts": write_facts(replace(facts, asked=len(known), crashed=len(crashed)))})

    while len(crashed) <= CRASHES:
        told, _ = ask_in_child(work)
        if told and "facts" in told[-1]:
            return read(told[-1]["facts"])
        if not told:
            return None
        crashed.add(told[-1]["asking"])
    return None


def ask_models(
    build: HostChecks,
    declared: Mapping[str, Sequence[Argument]],
    models: Sequence[str],
    tell: Callable[[str], None],
) -> dict[str, dict[str, Facts]]:
    """The grid of every kernel that the library holds, by kernel and model. `tell` gets one line
    of progress now and then."""
    found: dict[str, dict[str, Facts]] = {}
    library = CheckLibrary(build.library)
    kernels = sorted(k for k in build.kernels if k in declared and library.has(k))
    for number, kernel in enumerate(kernels, 1):
        for model in models:
            library.choose(model)
            facts = ask_kernel(library, kernel, declared[kernel])
            if facts is not None:
                found.setdefault(kernel, {})[model] = facts
        if number % 50 == 0 or number == len(kernels):
            tell(f"asked for {number} of {len(kernels)} kernels")
    return found


def rows_of(
    found: Mapping[str, Mapping[str, Facts]], sources: Mapping[str, str]
) -> list[TensorAnswer]:
    """Answers as rows: models that answered alike share one. Kernels of which nothing was learned
    are left out."""
    rows: list[TensorAnswer] = []
    for kernel, by_model in sorted(found.items()):
        count = max(len(facts.tensors) for facts in by_model.values())
        here: list[TensorAnswer] = []
        for place in range(count):
            groups: dict[tuple[Fact, int], list[str]] = {}
            for model, facts in by_model.items():
                groups.setdefault((facts.tensors[place], facts.most), []).append(model)
            here += [
                TensorAnswer(
                    kernel, fact.parameter, fact.role, fact.optional, frozenset(models),
                    frozenset(fact.takes), frozenset(fact.refuses), most, sources.get(kernel, ""),
                )
                for (fact, most), models in groups.items()
            ]  # fmt: skip
        if any(row.takes or row.refuses for row in here):
            rows += here
    return rows


def write_facts(facts: Facts) -> dict[str, Any]:
    """Facts as plain data."""
    names = Facts.__dataclass_fields__
    raw = {name: getattr(facts, name) for name in names}
    fields = Fact.__dataclass_fields__
    return {**raw, "tensors": [{f: getattr(one, f) for f in fields} for one in facts.tensors]}


def read(raw: dict[str, Any]) -> Facts:
    """Facts from plain data."""
    tensors = tuple(
        Fact(one["parameter"], one["role"], one["optional"], tuple(one["takes"]),
             tuple(one["refuses"]))
        for one in raw["tensors"]
    )  # fmt: skip
    return Facts(**{**raw, "tensors": tensors})


def is_optional(argument: Argument) -> bool:
    """Whether a tensor may be left out, as its name tells."""
    return argument.kind in TENSORS and argument.name.endswith("Optional")


def dtype_in(value: Any) -> str:
    """The dtype of a tensor or of the first in a list."""
    return str((value[0] if isinstance(value, list) else value).dtype)


def with_dtype(question: Sequence[Any], places: Sequence[int], dtype: str) -> list[Any]:
    """The question with another dtype of the tensors at some places."""
    changed = list(question)
    for place in places:
        value = changed[place]
        if isinstance(value, list):
            changed[place] = [replace(one, dtype=dtype) for one in value]
        else:
            changed[place] = replace(value, dtype=dtype)
    return changed


def with_shape(value: Any, shape: tuple[int, ...]) -> Any:
    """A tensor of another shape, or each of a list."""
    if isinstance(value, list):
        return [replace(one, shape=shape) for one in value]
    return replace(value, shape=shape)


def deeper(value: Any, depth: int) -> Any:
    """A tensor of another number of dimensions; other values as they are."""
    if isinstance(value, Form) and value.shape:
        return replace(value, shape=(SIDE,) * depth)
    if isinstance(value, list):
        return [deeper(one, depth) for one in value]
    return value
