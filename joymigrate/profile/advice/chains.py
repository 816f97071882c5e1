"""Finds operators that feed each other in a given order, along the data flow of a step.

A pattern is a list of steps, `a|b` for alternatives, a trailing `?` for an optional step, `*` for
any number; `add` means `add_` as well, `add_` only that. Operators that only look at the same data
differently (views, casts, copies) may lie between steps, unless the pattern names them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from joymigrate.profile.capture import Capture, CapturedOperator

TRANSPARENT = frozenset(
    """view _unsafe_view reshape _reshape_alias t transpose permute expand squeeze unsqueeze select
    slice clone contiguous detach alias _to_copy to type_as as_strided copy_ lift_fresh split
    split_with_sizes chunk unbind empty_like""".split()  # noqa: SIM905  one line per word is no gain
)
FARTHEST = 6  # transparent operators in a row


@dataclass(frozen=True, slots=True)
class PatternStep:
    """One step of a pattern: base names of operators, and how often it may occur."""

    names: frozenset[str]
    optional: bool = False
    repeated: bool = False


def parse(pattern: Sequence[str]) -> tuple[PatternStep, ...]:
    """Steps from their texts: `mul|div?`."""
    steps = []
    for text in pattern:
        mark = text[-1] if text[-1] in "?*" else ""
        names = frozenset(text.rstrip("?*").split("|"))
        steps.append(PatternStep(names, optional=bool(mark), repeated=mark == "*"))
    return tuple(steps)


def base(operator: CapturedOperator) -> str:
    """`add` of `aten::add_`: in-place forms are the same step."""
    name = operator.op.removeprefix("aten::")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


class CallGraph:
    """The stream of one recording as a graph: who consumes the results of a call."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.names = [base(operator) for operator in capture.operators]
        self.exact = [operator.op.removeprefix("aten::") for operator in capture.operators]
        self.consumers: dict[int, list[int]] = defaultdict(list)
        for call, (_, made) in enumerate(capture.stream):
            for producer in dict.fromkeys(made):
                if producer >= 0:
                    self.consumers[producer].append(call)

    def name(self, call: int) -> str:
        """The base name of a call's operator."""
        return self.names[self.capture.stream[call][0]]

    def operator(self, call: int) -> CapturedOperator:
        """The operator of a call."""
        return self.capture.operators[self.capture.stream[call][0]]

    def comes_from(self, call: int, names: Sequence[str]) -> bool:
        """Whether an input of a call is, through views and copies, what one of `names` made."""
        todo = [call]
        for one in todo:  # which grows
            for producer in self.capture.stream[one][1]:
                if producer >= 0 and self.name(producer) in names:
                    return True
                if producer >= 0 and self.name(producer) in TRANSPARENT and len(todo) < 32:
                    todo.append(producer)
        return False

    def matches(self, steps: Sequence[PatternStep], phase: str | None) -> Iterator[list[int]]:
        """Every match as the calls of its steps; none shares its last call with another."""
        taken: set[int] = set()
        for call in range(len(self.capture.stream)):
            if phase is not None and self.operator(call).phase != phase:
                continue
            for path in self.follow(call, tuple(steps), 0):
                if path[-1] not in taken:
                    taken.add(path[-1])
                    yield path
                    break

    def follow(self, call: int, steps: tuple[PatternStep, ...], idle: int) -> Iterator[list[int]]:
        """Paths from `call` that match all steps; `idle` transparent calls lie before it."""
        for rest in self.uses(call, steps):
            longer = False
            if rest:
                for consumer in self.consumers.get(call, ()):
                    for path in self.follow(consumer, rest, 1):
                        longer = True
                        yield [call, *path]
            if not longer and all(step.optional for step in rest):
                yield [call]
        passes = self.name(call) in TRANSPARENT and self.name(call) not in steps[0].names
        if passes and 0 < idle <= FARTHEST:
            for consumer in self.consumers.get(call, ()):
                yield from self.follow(consumer, steps, idle + 1)

    def uses(self, call: int, steps: tuple[PatternStep, ...]) -> Iterator[tuple[PatternStep, ...]]:
        """What remains after `call` was taken for a step; optional ones may be left out."""
        exact = self.exact[self.capture.stream[call][0]]
        both = {self.name(call), exact}
        for index, step in enumerate(steps):
            if both & step.names:
                yield steps[index:] if step.repeated else steps[index + 1 :]
            if not step.optional:
                return
