"""S5: free steps. Errors by sketches along the order of computing; they accumulate, so a place is
only blamed where the error jumps, and only when nothing before explains it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.language import Text
from joymigrate.verify.bundle import Table
from joymigrate.verify.display import Display
from joymigrate.verify.model import Difference, Phase, Status

# What rounding alone leaves after some layers, and the least jump that is blamed.
FLOOR = {"float64": 2.0**-40, "float32": 2.0**-21, "float16": 2.0**-9, "bfloat16": 2.0**-6}
JUMP = 10.0
LEAST = {"float64": 2.0**-30, "float32": 2.0**-18, "float16": 2.0**-6, "bfloat16": 2.0**-3}
# A gradient is less well conditioned than what it is the gradient of.
LOSS = {"float64": 1e-6, "float32": 2e-3, "float16": 5e-2, "bfloat16": 0.15}
# A model's output in a later step, on the same inputs.
MOVED = {"float64": 1e-6, "float32": 2e-4, "float16": 5e-2, "bfloat16": 0.15}
# A gradient along the baseline's: elements, gradients, relative change, share of the error across.
MANY, FEW, STRETCH, ALONG = 32, 5, 0.05, 0.3
STRETCHED = "factor"  # a metric; rounding does not explain it
CHANGED = "gradients inside of the model agree: it is reduced, clipped or added up otherwise"
IN_TRAINING = "in training mode here, in evaluation mode in the baseline"
IN_EVALUATION = "in evaluation mode here, in training mode in the baseline"
PHASES = {"grad": Phase.BACKWARD, "gout": Phase.BACKWARD, "param": Phase.OPTIMISER}
PHASES |= {"state": Phase.OPTIMISER, "buffer": Phase.STATE}


@dataclass(slots=True)
class Compared:
    """One step of both sides: rows of the baseline, the target's row (-1: none), and errors."""

    table: Table
    rows: NDArray[np.int64]
    errors: NDArray[np.float64]  # nan where there is no partner
    other: Table


def compare_step(mine: Table, other: Table, names: Mapping[str, str]) -> Compared:
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
    with np.errstate(all="ignore"):
        found = np.linalg.norm(a - b, axis=1) / mine.sizes()[have]
        # A sketch can cancel; the norm can't.
        ours, theirs = mine.stats[have, 3].astype(float), other.stats[rows[have], 3].astype(float)
        norms = np.abs(ours - theirs) / np.where(ours > 0, ours, 1e-30)
        whole = ~(np.isnan(mine.stats[have, 0]) | np.isnan(other.stats[rows[have], 0]))
        whole |= np.isnan(found)
        found = np.where(whole, np.maximum(found, norms), found)
    found[same] = 0.0
    found[np.isnan(found)] = np.inf
    errors[have] = found
    return Compared(mine, rows, errors, other)


def coarser(a: str, b: str) -> str:
    """The dtype with fewer digits of two."""
    order = ("float64", "float32", "float16", "bfloat16")
    known = [d for d in (a, b) if d in order]
    return max(known, key=order.index) if known else "float32"


def find_narrowed(found: Compared) -> Iterator[str]:
    """For each output of a module that one side has in float32 and the target in 16 bits: that
    dtype. Mixed precision that is on there alone looks like this."""
    for row, there in enumerate(found.rows):
        if there >= 0 and found.table.kind[row] == "out" and found.table.dtype[row] == "float32":
            dtype = found.other.dtype[there]
            if dtype in ("bfloat16", "float16"):
                yield dtype


class Walk:
    """Looks along one step for the first place whose error is its own."""

    def __init__(
        self, found: Compared, view: Display, step: int, models: Mapping[str, Any]
    ) -> None:
        self.found = found
        self.view = view
        self.step = step
        self.models = models
        types = [
            coarser(found.table.dtype[row], found.other.dtype[there])
            for row, there in enumerate(found.rows)
            if there >= 0 and found.table.dtype[row].startswith(("float", "bfloat"))
        ]
        # Between bfloat16 layers a float32 norm is no better than what it is fed.
        self.dtype = next((t for t in ("bfloat16", "float16") if t in types), "float32")

    def difference(
        self, row: int, phase: Phase, op: str, limit: float, reason: str | None = None
    ) -> Difference:
        """A jump at one record."""
        table = self.found.table
        return Difference(
            module=self.view(table.module[row]),
            call=table.call[row],
            phase=phase.value,
            op=op,
            metric="relative_l2",
            value=float(self.found.errors[row]),
            limit=limit,
            status=Status.FAIL,
            stage="S5",
            step=self.step,
            reason=reason,
            order=row,
        )

    def forward(self) -> Difference | None:
        """The first module whose output is much worse than what it was fed."""
        table, errors = self.found.table, self.found.errors
        fed: dict[tuple[str, int], float] = {}
        unknown: set[tuple[str, int]] = set()
        for row in range(len(table)):
            error, key = errors[row], (table.module[row], table.call[row])
            if table.kind[row] == "in" and self.found.rows[row] < 0 and not key[0].endswith(":"):
                unknown.add(key)  # a part of a tensor-parallel input: its parent is asked instead
            if np.isnan(error):
                continue
            if table.kind[row] == "in":
                fed[key] = max(fed.get(key, 0.0), error)
            if table.kind[row] != "out" or key in unknown:
                continue
            least = LEAST[self.dtype]
            limit = max(least, JUMP * max(fed.get(key, 0.0), FLOOR[self.dtype]))
            if error > limit:
                return self.difference(
                    row, Phase.FORWARD, f"output {table.leaf[row]}".rstrip(), limit
                )
        return None

    def mode(
        self, ours: Mapping[str, list[int]], theirs: Mapping[str, list[int]], before: float
    ) -> Difference | None:
        """A model whose output differs, and that is in training mode on one side only. Where
        modules draw random numbers this is all that a free run can tell of their results.
        `before`: the largest error of parameters after the step before."""
        table, errors = self.found.table, self.found.errors
        limit = max(MOVED[self.dtype], JUMP * before)
        for place, flags in sorted(ours.items(), key=lambda item: item[0].count(".")):
            other = theirs.get(self.models.get(place, place), flags)
            if other == flags or len(other) != len(flags):
                continue
            root = f"{place.partition(':')[0]}:"
            for row in range(len(table)):
                same = (table.module[row], table.kind[row]) == (root, "out")
                if same and errors[row] > limit:
                    on = next(b for a, b in zip(flags, other, strict=True) if a != b)
                    reason = IN_TRAINING if on else IN_EVALUATION
                    made = self.difference(row, Phase.FORWARD, "mode", limit, reason)
                    return replace_module(made, self.view(place))
        return None

    def loss(self) -> Difference | None:
        """Gradients that come back to the model while its outputs agree: the loss is another."""
        table, errors = self.found.table, self.found.errors
        outputs: dict[tuple[str, int, str], float] = {}
        for row in range(len(table)):
            place = (table.module[row], table.call[row], table.leaf[row])
            if table.module[row].endswith(":") and not np.isnan(errors[row]):
                if table.kind[row] == "out":
                    outputs[place] = errors[row]
                if table.kind[row] == "gout" and place in outputs:
                    limit = max(LOSS[self.dtype], JUMP * outputs[place])
                    if errors[row] > limit:
                        reason = (
                            self.scaled(row) or "the outputs agree, what the loss sends back not"
                        )
                        return self.difference(row, Phase.BACKWARD, "loss", limit, reason)
        return None

    def typical(self, kind: str) -> float | None:
        """The median error of one kind of records; None without any."""
        found = [e for k, e in zip(self.found.table.kind, self.found.errors, strict=True)
                 if k == kind and not np.isnan(e)]  # fmt: skip
        return float(np.median(found)) if found else None

    def backward(self) -> Difference | None:
        """The first gradient that is much worse than those before it."""
        table, errors = self.found.table, self.found.errors
        before = max(FLOOR[self.dtype], self.worst("out"))
        for row in range(len(table)):
            if table.kind[row] != "gout" or np.isnan(errors[row]):
                continue
            limit = max(LOSS[self.dtype], JUMP * before)
            if errors[row] > limit:
                made = self.difference(row, Phase.BACKWARD, "gradient", limit)
                return replace_module(made, self.view(self.consumer(row)))
            before = max(before, errors[row])
        return None

    def updates(self) -> Difference | None:
        """Gradients as the optimiser gets them, where those inside of the model agree."""
        table, errors = self.found.table, self.found.errors
        limit = max(LOSS[self.dtype], JUMP * self.worst("gout"))
        usual = self.usual_gradient()
        wrong: list[int] = []
        for row in range(len(table)):
            if table.kind[row] != "grad":
                continue
            leaf = table.leaf[row]
            if self.found.rows[row] < 0:
                if self.known(row):
                    reason = "the target has no gradient here"
                    made = self.difference(
                        row, Phase.BACKWARD, Text("gradient of {leaf}", leaf=leaf), 0.0, reason
                    )
                    return made
                continue
            # A gradient that is zero but for rounding (a bias before a batch norm) tells nothing.
            size = float(table.stats[row, 3]) / max(elements(table.shape[row]), 1) ** 0.5
            if errors[row] * size > limit * max(size, 0.01 * usual):
                wrong.append(row)
        if not wrong:
            return self.stretched() if self.step == 0 else None
        # What is clipped by the norm of all of them carries one wrong gradient to the others.
        row = max(wrong, key=lambda row: errors[row])
        row = wrong[0] if errors[row] < JUMP * errors[wrong[0]] else row
        words = Text("gradient of {leaf}", leaf=table.leaf[row])
        return self.difference(row, Phase.BACKWARD, words, limit, self.scaled(row) or CHANGED)

    def stretched(self) -> Difference | None:
        """A gradient in the first step that is the baseline's times a number, where most are not:
        rounding does not point along a gradient, however large it is."""
        table, factors = self.found.table, {}
        for row, there in enumerate(self.found.rows):
            own = table.kind[row] == "grad" and there >= 0 and not table.leaf[row].startswith("?")
            if own and elements(table.shape[row]) >= MANY:
                mine = table.sketch[row].astype(float)
                theirs = self.found.other.sketch[there].astype(float)
                factor = float(mine @ theirs) / max(float(mine @ mine), 1e-30)
                left = np.linalg.norm(theirs - factor * mine)
                factors[row] = (abs(factor - 1), left < ALONG * np.linalg.norm(theirs - mine))
        if len(factors) < FEW:
            return None
        limit = max(STRETCH, 3 * float(np.median([size for size, _ in factors.values()])))
        for row, (size, along) in factors.items():
            if along and size > limit:
                words = Text("gradient of {leaf}", leaf=table.leaf[row])
                reason = self.scaled(row) or CHANGED
                made = self.difference(row, Phase.BACKWARD, words, limit, reason)
                return dataclasses.replace(made, metric=STRETCHED)
        return None

    def buffers(self) -> Difference | None:
        """A buffer that differs by more than what its model computes, as a step ends."""
        table, errors = self.found.table, self.found.errors
        limit = max(MOVED[self.dtype], JUMP * self.worst("out"))
        for row in range(len(table)):
            if table.kind[row] == "buffer" and errors[row] > limit:
                words = Text("buffer {leaf}", leaf=table.leaf[row])
                reason = "this is updated otherwise"
                return self.difference(row, Phase.STATE, words, limit, reason)
        return None

    def parameters(self) -> Difference | None:
        """Parameters after an update whose gradients agreed: for optimisers that are not torch's.

        A wrong rule moves most of them; a single one may only have a gradient that is zero but for
        rounding, which Adam's kind blows up. Where a program has dropped its gradients by the end
        of the step, those that its modules' outputs got are held against each other.
        """
        table, errors = self.found.table, self.found.errors
        limit = max(2e-5 if self.dtype == "float32" else 2e-2, JUMP * self.worst("out"))
        known, wrong = 0, []
        for row in range(len(table)):
            if table.kind[row] != "param":
                continue
            gradient = table.place((table.module[row], 0, "grad", table.leaf[row]))
            if gradient is None and "grad" in table.kind:
                continue
            known_by = errors[gradient] if gradient is not None else self.worst("gout")
            if not known_by <= LOSS[self.dtype]:
                continue
            known += 1
            if errors[row] > limit:
                wrong.append(row)
        if not wrong or 2 * len(wrong) < known:
            return None
        name = f"param {table.leaf[wrong[0]]}"
        if "grad" in self.found.other.kind and "grad" not in table.kind:
            reason = "the target keeps its gradients, which the baseline clears"
            return self.difference(wrong[0], Phase.BACKWARD, name, limit, reason)
        return self.difference(wrong[0], Phase.OPTIMISER, name, limit)

    def moved(self, random: Collection[str], before: float) -> Difference | None:
        """A model that agreed in the step before, and on the same inputs no longer does: its
        weights were changed otherwise in between. `before`: the largest error of that step's
        parameters; models in `random` draw numbers of their own device."""
        table, errors = self.found.table, self.found.errors
        limit = max(MOVED[self.dtype], 100 * before)
        fed: dict[tuple[str, int], float] = {}
        for row in range(len(table)):
            module, key = table.module[row], (table.module[row], table.call[row])
            if not module.endswith(":") or module[:-1] in random or np.isnan(errors[row]):
                continue
            if table.kind[row] == "in":
                fed[key] = max(fed.get(key, 0.0), errors[row])
            if table.kind[row] == "out" and fed.get(key) == 0.0 and errors[row] > limit:
                reason = "it agreed in the step before: its weights were changed otherwise since"
                return self.difference(row, Phase.OPTIMISER, "weights", limit, reason)
        return None

    def usual_gradient(self) -> float:
        """The largest root mean square of a parameter's gradient."""
        table = self.found.table
        at = [row for row in range(len(table)) if table.kind[row] == "grad"]
        sizes = [table.stats[r, 3] / max(elements(table.shape[r]), 1) ** 0.5 for r in at]
        return float(max(sizes, default=0.0))

    def worst(self, kind: str) -> float:
        """The largest error of a kind."""
        at = [e for e, k in zip(self.found.errors, self.found.table.kind, strict=True) if k == kind]
        known = [e for e in at if np.isfinite(e)]
        return float(max(known, default=0.0))

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


def elements(shape: tuple[int, ...]) -> int:
    """How many numbers a tensor of this shape has."""
    return math.prod(shape)


def replace_module(difference: Difference, module: str) -> Difference:
    """The difference under another module's name."""
    import dataclasses

    return dataclasses.replace(difference, module=module)


def depth(found: Compared, view: Display, step: int) -> Iterator[dict[str, Any]]:
    """The error of each output along the order of computing, for a plot."""
    table = found.table
    for row in range(len(table)):
        if table.kind[row] == "out" and np.isfinite(found.errors[row]):
            error = float(found.errors[row])
            module = view(table.module[row])
            yield {"module": module, "order": row, "step": step, "error": error}
