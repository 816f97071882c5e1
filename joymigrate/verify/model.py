"""The nouns of verification: records, differences, stages, the verdict. No torch, no pandas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

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


@dataclass(frozen=True, slots=True)
class Difference:
    """Two records held against each other: the metric, its limit, and the status.

    `consequence_of` names the module whose failure explains this one; such a difference never
    has a failing status of its own.
    """

    module: str
    call: int
    phase: str | None
    op: str | None
    metric: str
    value: float | None
    limit: float | None
    status: RecordStatus
    stage: str
    step: int | None = None
    target_error: float | None = None
    baseline_error: float | None = None
    reason: str | None = None
    consequence_of: str | None = None
    order: int = 0


class Cause(NamedTuple):
    """Why a place is wrong. `by` is what it rests on: a diff of both sides' calls, an experiment,
    or a fact that both sides recorded; `lines` are those of both sides' code."""

    name: str | None
    words: Any
    by: str | None = None
    lines: tuple[str, str] | None = None


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
    cause: str | None = None  # permutation, eps or scale, dropout, overflow, numerics only, …
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


def number(value: float | None) -> float | str | None:
    """A float that JSON can hold: non-finite ones as text."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)


def difference_json(difference: Difference) -> dict[str, Any]:
    """One entry of `records`."""
    return {
        "stage": difference.stage,
        "step": difference.step,
        "module": difference.module,
        "call": difference.call,
        "phase": difference.phase,
        "op": difference.op,
        "metric": difference.metric,
        "value": number(difference.value),
        "limit": number(difference.limit),
        "status": difference.status.value,
        "target_error": number(difference.target_error),
        "baseline_error": number(difference.baseline_error),
        "reason": difference.reason,
        "consequence_of": difference.consequence_of,
    }


def divergence_json(first: FirstDivergence | None) -> dict[str, Any] | None:
    """The entry `first_divergence`."""
    if first is None:
        return None
    return {
        "module": first.module,
        "call": first.call,
        "phase": first.phase,
        "op": first.op,
        "metric": first.metric,
        "value": number(first.value),
        "limit": number(first.limit),
        "stage": first.stage,
        "step": first.step,
        "cause": first.cause,
        "cause_by": first.cause_by,
        "evidence": first.evidence,
        "line": dict(zip(("baseline", "target"), first.line, strict=True)) if first.line else None,
    }


def stage_json(result: StageResult) -> dict[str, Any]:
    """One entry of `stages`."""
    return {
        "stage": result.stage,
        "title": result.title,
        "verdict": result.verdict.value,
        "compared": result.compared,
        "recorded": result.recorded,
        "counts": dict(result.counts),
        "reason": result.reason,
        "notes": list(result.notes),
        "details": dict(result.details),
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The document `joymigrate.verdict/1`."""
    coverage = verdict.coverage
    return {
        "schema": SCHEMA,
        "verdict": verdict.verdict.value,
        "stage": verdict.stage,
        "reason": verdict.reason,
        "rehearsal": verdict.rehearsal,
        "first_divergence": divergence_json(verdict.first_divergence),
        "coverage": {
            "modules": coverage.modules,
            "limit": coverage.limit,
            "compared": coverage.compared,
            "recorded": coverage.recorded,
            "uncompared": list(coverage.uncompared),
        },
        "covered": dict(verdict.covered),
        "uncovered": [dict(item) for item in verdict.uncovered],
        "stages": [stage_json(stage) for stage in verdict.stages],
        "baseline": dict(verdict.baseline),
        "target": dict(verdict.target),
        "growth": dict(verdict.growth),
        "records": [difference_json(difference) for difference in verdict.records],
    }
