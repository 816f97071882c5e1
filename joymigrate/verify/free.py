"""S5: a free step of both sides. Every record is held to the baseline's own other runs; the first
that departs is the place, and its kind tells what was done otherwise. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.language import Text
from joymigrate.verify.bundle import RecordTable
from joymigrate.verify.display import Display
from joymigrate.verify.judge import (
    RECORD,
    RESOLUTION,
    ErrorSeries,
    Judge,
    Key,
    SeriesDecision,
)
from joymigrate.verify.model import Difference, Phase, RecordStatus
from joymigrate.verify.tolerance import ROUNDED_LAST

CARRIED = 10.0  # times: a gradient that is so much farther off is the one that others follow
INNER = "gradient"  # that comes back to a module inside of a model
CHANGED = "gradients inside of the model agree: it is reduced, clipped or added up otherwise"
IN_TRAINING = "in training mode here, in evaluation mode in the baseline"
IN_EVALUATION = "in evaluation mode here, in training mode in the baseline"
PHASES = {"grad": Phase.BACKWARD, "gout": Phase.BACKWARD, "param": Phase.OPTIMISER}
PHASES |= {"state": Phase.OPTIMISER, "buffer": Phase.STATE}
NUMBER = re.compile(r"\d+")
Sibling = tuple[str, str, str]  # kind, module without numbers, leaf


@dataclass(slots=True)
class StepComparison:
    """One step of both sides: rows of the baseline, the target's row (-1: none), and errors."""

    table: RecordTable
    rows: NDArray[np.int64]
    errors: NDArray[np.float64]  # nan where there is no partner
    other: RecordTable


def compare_step(mine: RecordTable, other: RecordTable, names: Mapping[str, str]) -> StepComparison:
    """Hold one step's tables against each other."""
    rows = np.full(len(mine), -1, np.int64)
    turns = mine.turns()
    for row, (module, call, kind, leaf) in enumerate(mine.keys()):
        there = other.place((names.get(module, module), call, kind, leaf), turns[row])
        if there is not None and tuple(other.shape[there]) == tuple(mine.shape[row]):
            rows[row] = there
    errors = np.full(len(mine), np.nan)
    have = rows >= 0
    a, b = mine.sketch[have].astype(np.float64), other.sketch[rows[have]].astype(np.float64)
    same = np.all((a == b) | (np.isnan(a) & np.isnan(b)), axis=1)
    sizes = measures(mine)[have]
    with np.errstate(all="ignore"):
        found = np.linalg.norm(a - b, axis=1) / sizes
        # A sketch can cancel; the norm can't.
        ours, theirs = mine.stats[have, 3].astype(float), other.stats[rows[have], 3].astype(float)
        norms = np.abs(ours - theirs) / sizes
        whole = ~(np.isnan(mine.stats[have, 0]) | np.isnan(other.stats[rows[have], 0]))
        whole |= np.isnan(found)
        found = np.where(whole, np.maximum(found, norms), found)
    found[same] = 0.0
    found[np.isnan(found)] = np.inf
    errors[have] = found
    return StepComparison(mine, rows, errors, other)


def tell_mode(training: bool) -> str:
    """Which mode a module of the target is in, where the baseline's is in the other."""
    return IN_TRAINING if training else IN_EVALUATION


def measures(table: RecordTable) -> NDArray[np.float64]:
    """What the errors of a step's records are relative to [N]: a record's norm, and what one of its
    kind, type and name of state usually is, by its number of elements. A gradient that is zero but
    for rounding tells nothing."""
    sizes: NDArray[np.float64] = table.sizes()
    width = np.sqrt([max(math.prod(shape), 1) for shape in table.shape])
    made: NDArray[np.float64] = sizes.copy()
    kinds = [
        (kind, dtype, leaf.rpartition(".")[2] if kind == "state" else "")
        for kind, dtype, leaf in zip(table.kind, table.dtype, table.leaf, strict=True)
    ]
    for kind in set(kinds):
        at = np.array([one == kind for one in kinds])
        made[at] += np.median(sizes[at] / width[at]) * width[at]
    return made


def find_narrowed(found: StepComparison) -> Iterator[str]:
    """For each output of a module that one side has in float32 and the target in 16 bits: that
    dtype. Mixed precision that is on there alone looks like this."""
    for row, there in enumerate(found.rows):
        if there >= 0 and found.table.kind[row] == "out" and found.table.dtype[row] == "float32":
            dtype = found.other.dtype[there]
            if dtype in ("bfloat16", "float16"):
                yield dtype


def record_key(step: int, row: int) -> Key:
    """The judge's name of one record of a step."""
    return RECORD[0], f"{step} {row}"


def resolution(dtype: str) -> float:
    """The relative error, in the norm, below which a record of a type has none."""
    return ROUNDED_LAST.get(dtype, RESOLUTION)


def without_numbers(name: str) -> str:
    """What the siblings of a module or value are called alike: layers, experts."""
    return NUMBER.sub("", name)


class FreeStep:
    """One step of both sides, and which of its records depart."""

    def __init__(
        self,
        found: StepComparison,
        view: Display,
        step: int,
        models: Mapping[str, Any],
        judge: Judge,
        moved: float = 0.0,
        known: dict[Sibling, float] | None = None,
    ) -> None:
        self.found, self.view, self.step, self.models = found, view, step, models
        table, usual = found.table, self.usual_nulls(judge)
        alone = [math.prod(shape) == 1 for shape in table.shape]
        alike = self.alike_nulls(judge, known)
        floors = [
            max(usual[table.kind[row]][alone[row]], alike[row], moved, resolution(table.dtype[row]))
            for row in range(len(table))
        ]
        self.decided: list[SeriesDecision | None] = [
            None
            if np.isnan(error)
            else judge.decide(
                record_key(step, row), ErrorSeries([(step, float(error))], floor=floor)
            )
            for row, (error, floor) in enumerate(zip(found.errors, floors, strict=True))
        ]

    def usual_nulls(self, judge: Judge) -> dict[str, tuple[float, float]]:
        """What the records of each kind are off by in the baseline's own runs, usually and at the
        most: one that happened to move less in them will not do so in every clean run, and a single
        number may come to the same in all of them."""
        nulls: dict[str, list[float]] = {kind: [0.0] for kind in self.found.table.kind}
        for row, kind in enumerate(self.found.table.kind):
            key = record_key(self.step, row)
            errors = [null[key].points[0][1] for null in judge.nulls if key in null]
            nulls[kind] += [max(errors)] if errors else []
        return {k: (float(np.median(e[1:] or e)), max(e)) for k, e in nulls.items()}

    def alike_nulls(self, judge: Judge, known: dict[Sibling, float] | None) -> list[float]:
        """What each record and its siblings are off by in the baseline's own runs, at the most, in
        this step or one before (`known`): where rounding flips a choice, one run shows it in one
        expert or layer, and another in the next."""
        most = {} if known is None else known
        siblings = [
            (kind, without_numbers(module), leaf)
            for module, _, kind, leaf in self.found.table.keys()  # noqa: SIM118
        ]
        for row, sibling in enumerate(siblings):
            key = record_key(self.step, row)
            errors = [null[key].points[0][1] for null in judge.nulls if key in null]
            most[sibling] = max([most.get(sibling, 0.0), *errors])
        return [most[sibling] for sibling in siblings]

    def weights_apart(self, judge: Judge) -> float:
        """How far the baseline's own runs have all weights apart as the step ends, relative to
        their norm: nothing is computed from them to fewer digits. One whose gradient is rounding
        goes either way, and shows in what is small in those runs by chance."""
        at = [row for row, kind in enumerate(self.found.table.kind) if kind == "param"]
        keys, sizes = [record_key(self.step, row) for row in at], measures(self.found.table)[at]
        sizes = np.where(np.isfinite(sizes), sizes, 0.0)
        errors = [[n[k].points[0][1] if k in n else 0.0 for k in keys] for n in judge.nulls]
        apart = [np.linalg.norm(np.minimum(one, 1.0) * sizes) for one in errors]
        return float(max(apart, default=0.0) / (np.linalg.norm(sizes) or 1.0))

    def departs(self, row: int) -> bool:
        """Whether a record is farther off than the baseline's own runs are."""
        decided = self.decided[row]
        return decided is not None and decided.at is not None

    def difference(self, row: int, phase: Phase, op: Any, reason: Any = None) -> Difference:
        """The failure that one record shows."""
        table, decided = self.found.table, self.decided[row]
        return Difference(
            module=self.view(table.module[row]),
            call=table.call[row],
            phase=phase.value,
            op=op,
            metric="relative_l2",
            value=None if decided is None else decided.value,
            limit=None if decided is None else decided.limit,
            status=RecordStatus.FAIL,
            stage="S5",
            step=self.step,
            reason=reason,
            order=row,
        )

    def mode(
        self, ours: Mapping[str, list[int]], theirs: Mapping[str, list[int]]
    ) -> Difference | None:
        """A model whose output departs, and that is in training mode on one side only. Where
        modules draw random numbers this is all that a free run can tell of their results."""
        table = self.found.table
        for place, flags in sorted(ours.items(), key=lambda item: item[0].count(".")):
            other = theirs.get(self.models.get(place, place), flags)
            if other == flags or len(other) != len(flags):
                continue
            root = f"{place.partition(':')[0]}:"
            for row in range(len(table)):
                if (table.module[row], table.kind[row]) == (root, "out") and self.departs(row):
                    on = next(b for a, b in zip(flags, other, strict=True) if a != b)
                    reason = tell_mode(bool(on))
                    made = self.difference(row, Phase.FORWARD, "mode", reason)
                    return replace(made, module=self.view(place))
        return None

    def first(self, random: Collection[str], judged: bool) -> Difference | None:
        """The first record that departs by what was done to it, not by what it was made of. Models
        in `random` draw numbers of their own device; `judged`: the updates were, by themselves."""
        table, given = self.found.table, self.find_given()
        for row in range(len(table)):
            module, kind, leaf = table.module[row], table.kind[row], table.leaf[row]
            if kind == "grad" and self.found.rows[row] < 0 and self.known(row):
                words = Text("gradient of {leaf}", leaf=leaf)
                reason = "the target has no gradient here"
                return self.difference(row, Phase.BACKWARD, words, reason)
            if not self.departs(row):
                continue
            if kind == "in" and module.endswith(":"):
                return None  # what models are given is judged for itself
            if kind == "out" and module.partition(":")[0] in random:
                return None
            if kind == "out" and (module, table.call[row]) not in given:
                return self.difference(row, Phase.FORWARD, f"output {leaf}".rstrip())
            if kind == "loss":
                return self.difference(row, Phase.LOSS, f"loss {leaf}".rstrip())
            if kind == "gout":
                return self.backward(row)
            if kind == "grad":
                return self.gradient(row)
            if kind in ("param", "state"):
                if not (judged and self.has_gradient(row)):
                    return self.updated(row)
                continue  # a sign that rounding flips moves a weight by a whole step
            if kind == "buffer":
                words = Text("buffer {leaf}", leaf=leaf)
                return self.difference(row, Phase.STATE, words, "this is updated otherwise")
        return None

    def find_given(self) -> set[tuple[str, int]]:
        """Calls of modules (place, number) that were given something that departs, or a part of a
        tensor-parallel input: what makes it, or the module around them, is asked instead."""
        table, rows = self.found.table, self.found.rows
        return {
            (table.module[row], table.call[row])
            for row in range(len(table))
            if table.kind[row] == "in"
            and (self.departs(row) or (rows[row] < 0 and not table.module[row].endswith(":")))
        }

    def backward(self, row: int) -> Difference:
        """A gradient inside of a model, or one that comes back to it while its outputs agree: then
        the loss is another."""
        if self.found.table.module[row].endswith(":"):
            reason = self.scaled(row) or "the outputs agree, what the loss sends back not"
            return self.difference(row, Phase.BACKWARD, "loss", reason)
        made = self.difference(row, Phase.BACKWARD, INNER)
        return replace(made, module=self.view(self.consumer(row)))

    def gradient(self, first: int) -> Difference:
        """A gradient as the optimiser gets it, where those inside of the model agree. What is
        clipped by the norm of all of them carries one wrong gradient to the others."""
        table, errors = self.found.table, self.found.errors
        wrong = [r for r in range(len(table)) if table.kind[r] == "grad" and self.departs(r)]
        row = max(wrong, key=lambda row: errors[row])
        row = first if errors[row] < CARRIED * errors[first] else row
        words = Text("gradient of {leaf}", leaf=table.leaf[row])
        return self.difference(row, Phase.BACKWARD, words, self.scaled(row) or CHANGED)

    def updated(self, row: int) -> Difference:
        """A weight, or what an optimiser keeps beside it, whose gradient agrees."""
        table = self.found.table
        name = f"{table.kind[row]} {table.leaf[row]}"
        if "grad" in self.found.other.kind and "grad" not in table.kind:
            reason = "the target keeps its gradients, which the baseline clears"
            return self.difference(row, Phase.BACKWARD, name, reason)
        return self.difference(row, Phase.OPTIMISER, name)

    def has_gradient(self, row: int) -> bool:
        """Whether a weight's gradient was recorded and agrees, as it did where none is recorded; a
        sparse one is not."""
        table = self.found.table
        weight = table.leaf[row].partition(".")[0]
        gradient = table.place((table.module[row], 0, "grad", weight))
        return gradient is not None or "grad" not in table.kind

    def known(self, row: int) -> bool:
        """Whether the target has gradients at all, and this parameter."""
        return (
            "grad" in self.found.other.kind
            and self.models.get(self.found.table.module[row]) is not None
        )

    def scaled(self, row: int) -> str | None:
        """Words for a gradient that is the other times a number."""
        mine = self.found.table.sketch[row].astype(float)
        theirs = self.found.other.sketch[self.found.rows[row]].astype(float)
        norm = float(mine @ mine)
        if not norm:
            return None
        scale = float(mine @ theirs) / norm
        if np.linalg.norm(theirs - scale * mine) > 0.05 * np.linalg.norm(theirs - mine):
            return None
        return Text(
            "the gradients are the baseline's times {scale} (loss scale, mean, clipping)",
            scale=f"{scale:.4g}",
        )

    def consumer(self, row: int) -> str:
        """The innermost module that took the tensor whose gradient is wrong."""
        table = self.found.table
        key = (table.module[row], table.call[row], "out", table.leaf[row])
        out = table.place(key)
        if out is None:
            return table.module[row]
        found = table.module[row]
        for other in range(out + 1, len(table)):
            if table.kind[other] == "in" and np.array_equal(table.sketch[other], table.sketch[out]):
                found = table.module[other]
                deeper = [
                    m
                    for m, k, s in zip(table.module, table.kind, table.sketch, strict=True)
                    if k == "in"
                    and m.startswith(f"{found}.")
                    and np.array_equal(s, table.sketch[out])
                ]
                return deeper[-1] if deeper else found
        parent = found.rpartition(".")[0]
        return parent or f"{found.partition(':')[0]}:"


def depth(found: StepComparison, view: Display, step: int) -> Iterator[dict[str, Any]]:
    """The error of each output along the order of computing, for a plot."""
    table = found.table
    for row in range(len(table)):
        if table.kind[row] == "out" and np.isfinite(found.errors[row]):
            error = float(found.errors[row])
            module = view(table.module[row])
            yield {"module": module, "order": row, "step": step, "error": error}
