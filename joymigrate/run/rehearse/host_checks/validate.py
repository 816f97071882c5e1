"""The recorded answers of host code against those of a library that is asked now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joymigrate.chips.answers import TensorAnswer


@dataclass(frozen=True, slots=True)
class AnswerChange:
    """One tensor of a kernel on one model that answers otherwise than recorded; an empty text
    stands for nothing on that side."""

    kernel: str
    parameter: str
    model: str
    recorded: str
    asked: str


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """A comparison. `compared` counts (kernel, tensor, model); `unasked` are kernels that are
    recorded and that the library could not be asked for."""

    compared: int
    equal: int
    unasked: tuple[str, ...]
    changes: tuple[AnswerChange, ...]


def compare(recorded: Iterable[TensorAnswer], asked: Sequence[TensorAnswer]) -> AnswerCheck:
    """Hold recorded answers against fresh ones. Kernels that were not asked now are only named."""
    before, now = by_place(recorded), by_place(asked)
    there = {kernel for kernel, *_ in now}
    unasked = sorted({kernel for kernel, *_ in before} - there)
    places = sorted({*now, *(place for place in before if place[0] in there)})
    changes = [
        AnswerChange(*place, before.get(place, ""), now.get(place, ""))
        for place in places
        if before.get(place, "") != now.get(place, "")
    ]
    return AnswerCheck(len(places), len(places) - len(changes), tuple(unasked), tuple(changes))


def by_place(rows: Iterable[TensorAnswer]) -> dict[tuple[str, str, str], str]:
    """What is said of each tensor on each model, in words."""
    return {
        (row.kernel, row.parameter, model): in_words(row)
        for row in rows
        for model in sorted(row.models)
    }


def in_words(row: TensorAnswer) -> str:
    """One answer as a text."""
    parts = [f"takes {' '.join(sorted(row.takes))}" if row.takes else ""]
    parts += [f"refuses {' '.join(sorted(row.refuses))}" if row.refuses else ""]
    parts += [f"at most {row.most} dimensions" if row.most else ""]
    return "; ".join(part for part in parts if part)
