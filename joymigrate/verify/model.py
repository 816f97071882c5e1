"""The nouns of verification: records, differences, stages, the verdict. No torch, no pandas."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

from joymigrate.language import Text

SCHEMA = "joymigrate.verdict/1"


class RecordStatus(str, Enum):
    """What was found about one record.

    UNCOMPARED never counts as passed. RANDOM: the values are drawn, and could not be replayed.
    """

    IDENTICAL = "IDENTICAL"
    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    NAN_MISMATCH = "NAN_MISMATCH"
    META_DIFF = "META_DIFF"
    UNCOMPARED = "UNCOMPARED"
    RANDOM = "RANDOM"

    @property
    def failed(self) -> bool:
        """Whether one such record fails a stage."""
        return self in (RecordStatus.FAIL, RecordStatus.NAN_MISMATCH)

    @property
    def compared(self) -> bool:
        """Whether the two sides were held against each other."""
        return self not in (RecordStatus.UNCOMPARED, RecordStatus.RANDOM)


class Outcome(str, Enum):
    """A stage's or a run's verdict. SKIPPED is a stage that was not asked for or not possible."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


class Phase(str, Enum):
    """Where in a step a difference arises."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMISER = "optimiser"
    INPUT = "input"  # what is given to a model
    LOSS = "loss"
    GRADIENTS = "gradients"  # between the backward pass and the update
    STATE = "state"  # buffers, copies, parameters updated by hand
    MODE = "mode"
    SCHEDULE = "schedule"
    OUTPUT = "output"  # results that the program reads


TITLES: dict[str, str] = {
    "S0": "environment",
    "S1": "identity of weights, buffers and batches",
    "S2": "operators",
    "S3": "modules, teacher-forced, fp32",
    "S4": "modules, teacher-forced, native dtype",
    "S4R": "the rest of the step, on the baseline's values, float64",
    "S5": "free steps",
    "S5F": "files that the program writes",
    "S5P": "printed numbers",
    "S5W": "the whole run: random numbers, data, losses, sizes of updates",
    "S6": "loss curve",
    "S7": "generation",
    "S8": "task",
}


@dataclass(frozen=True, slots=True)
class Record:
    """Statistics of one tensor (or one scalar) at one place of one step.

    `kind`: in, out, gout (gradient of an output), param, grad, state (of the optimiser), loss, …
    `leaf` says which tensor of that kind (`0`, `kwargs.mask`, `weight`, `weight.exp_avg`).
    `stats` is (max, min, mean, l2 norm) over finite values' own arithmetic, float32; `sketch` 64
    floats (see `sketch.py`).
    """

    step: int
    module: str
    call: int
    kind: str
    leaf: str
    dtype: str
    shape: tuple[int, ...]
    stats: tuple[float, float, float, float]
    sketch: Any = None  # float32[64]
    order: int = 0


class Cause(NamedTuple):
    """Why a place is wrong. `by` is what it rests on: a diff of both sides' calls, an experiment,
    or a fact that both sides recorded; `lines` are those of both sides' code."""

    name: str | None = None
    words: Any = None
    by: str | None = None
    lines: tuple[str, str] | None = None


UNEXPLAINED = Cause()


@dataclass(frozen=True, slots=True)
class Difference:
    """Two records held against each other: the metric, its limit, and the status.

    `consequence_of` names the module whose failure explains this one; such a difference never
    has a failing status of its own.
    """

    module: str
    call: int = 0
    phase: str | None = None
    op: str | None = None
    metric: str = ""
    value: float | None = None
    limit: float | None = None
    status: RecordStatus = RecordStatus.UNCOMPARED
    stage: str = ""
    step: int | None = None
    target_error: float | None = None
    baseline_error: float | None = None
    reason: str | None = None
    consequence_of: str | None = None
    order: int = 0
    cause: Cause = UNEXPLAINED


@dataclass(frozen=True, slots=True)
class FirstDivergence:
    """The first wrong place, with the cause that its numbers suggest."""

    module: str | None
    call: int | None
    phase: str | None
    op: str | None
    metric: str | None
    value: float | None
    limit: float | None
    stage: str = ""
    step: int | None = None
    cause: str | None = None  # permutation, eps or scale, dropout, overflow, …
    evidence: str | None = None
    cause_by: str | None = None  # diff, experiment or fact
    line: tuple[str, str] | None = None  # file:line of the baseline's and of the target's code


@dataclass(frozen=True, slots=True)
class StageResult:
    """One stage: its verdict, how much of it was compared, and why it was not judged.

    `details` carries what only one stage knows: differing settings, a curve, a table.
    """

    stage: str
    verdict: Outcome
    compared: int = 0
    recorded: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What the stage compares."""
        return TITLES.get(self.stage, self.stage)


@dataclass(frozen=True, slots=True)
class RecordCoverage:
    """Share of what was recorded that was compared; `modules` counts those with parameters."""

    modules: float
    compared: int
    recorded: int
    limit: float = 0.98
    uncompared: tuple[str, ...] = ()

    @property
    def enough(self) -> bool:
        """Whether the verdict may be pass."""
        return self.modules >= self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of comparing two runs. `stage` is the stage that decided.

    `growth` has the error over depth and over steps for plots:
    `{"depth": [{"module", "order", "step", "error"}], "steps": [{"step", "loss": [a, b], …}]}`.
    """

    verdict: Outcome
    stage: str | None
    first_divergence: FirstDivergence | None
    coverage: RecordCoverage
    records: tuple[Difference, ...] = ()
    stages: tuple[StageResult, ...] = ()
    baseline: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    growth: Mapping[str, Any] = field(default_factory=dict)
    rehearsal: bool = False
    reason: str | None = None
    covered: Mapping[str, Any] = field(default_factory=dict)  # what → {"compared", "of"}
    uncovered: tuple[Mapping[str, Any], ...] = ()  # {"what", "count", "reason"}

    def __bool__(self) -> bool:
        return self.verdict is Outcome.PASS


def place_of(
    record: Difference, *, cause: str | None = None, evidence: Any = None
) -> FirstDivergence:
    """A failed record as the place where the two sides part."""
    return FirstDivergence(
        record.module or None, record.call, record.phase, record.op, record.metric, record.value,
        record.limit, record.stage, record.step, cause, evidence,
    )  # fmt: skip


def one_stage(
    stage: str,
    outcome: Outcome,
    coverage: RecordCoverage,
    records: Sequence[Difference],
    first: FirstDivergence | None,
    reasons: Sequence[Any],
    notes: tuple[str, ...] = (),
    **more: Any,
) -> Verdict:
    """The verdict of a comparison that has one stage alone."""
    reason = Text.join("; ", reasons) if reasons else None
    counts = Counter(record.status.value for record in records)
    made = StageResult(stage, outcome, coverage.compared, coverage.recorded, counts, reason, notes)
    place = first if outcome is Outcome.FAIL else None
    return Verdict(outcome, stage, place, coverage, tuple(records), (made,), reason=reason, **more)


def number(value: float | None) -> float | str | None:
    """A float that JSON can hold: non-finite ones as text."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)


def as_json(value: Any, *left_out: str) -> Any:
    """One of these nouns as a document has it, without some of its fields."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = (one.name for one in fields(value) if one.name not in left_out)
        return {name: as_json(getattr(value, name)) for name in names}
    return list(value) if isinstance(value, tuple) else value


def divergence_json(first: FirstDivergence | None) -> dict[str, Any] | None:
    """The entry `first_divergence`."""
    if first is None:
        return None
    line = dict(zip(("baseline", "target"), first.line, strict=True)) if first.line else None
    return {**as_json(first), "line": line}


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The document `joymigrate.verdict/1`."""
    return {
        "schema": SCHEMA,
        "verdict": verdict.verdict.value,
        "stage": verdict.stage,
        "reason": verdict.reason,
        "rehearsal": verdict.rehearsal,
        "first_divergence": divergence_json(verdict.first_divergence),
        "coverage": as_json(verdict.coverage),
        "covered": dict(verdict.covered),
        "uncovered": [dict(item) for item in verdict.uncovered],
        "stages": [{**as_json(stage), "title": stage.title} for stage in verdict.stages],
        "baseline": dict(verdict.baseline),
        "target": dict(verdict.target),
        "growth": dict(verdict.growth),
        "records": [as_json(row, "order", "cause") for row in verdict.records],
    }
