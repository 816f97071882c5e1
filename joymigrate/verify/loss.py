"""Two loss curves → how far they are apart, since which step, and whether that is rounding.

Reads JSONL (`{"step", "loss", …}`, as `train` writes it), CSV with a head line, and TensorBoard
event files or folders where tensorboard is installed. A column `NAME_resolution` is the size of the
last digit that was printed: a difference within it is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from joymigrate import stats
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.verify.loss_curves import LOSS_NAMES, NORM_NAMES, LossColumns, Values
from joymigrate.verify.model import (
    Difference,
    FirstDivergence,
    Outcome,
    RecordCoverage,
    RecordStatus,
    Verdict,
    as_json,
    number,
    one_stage,
    place_of,
    verdict_json,
)
from joymigrate.verify.tolerance import Tolerance

STAGE = "S6"
MOST_POINTS = 2000  # of a curve in the report
TINY = 1e-12
SLACK = 1.0001  # decimals are no binary fractions
WARN = "mean_relative_warn"

Points = list[tuple[float, float, float]]  # (step, baseline, target)


@dataclass(frozen=True, slots=True)
class LossComparison:
    """One quantity of both runs. Errors are relative to the baseline; `envelope` is the mean
    relative error of the baseline's own other runs."""

    name: str
    verdict: Outcome
    status: RecordStatus
    reason: str
    steps: tuple[float, ...]
    pairs: tuple[tuple[float, float], ...]
    mean_relative: float
    max_relative: float
    max_step: float
    above: int
    below: int
    p_sign: float
    first_outside: float | None
    first_nonfinite: float | None
    envelope: float | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def envelope_ratio(self) -> float | None:
        """How many times the baseline's own spread."""
        return None if self.envelope is None else self.mean_relative / max(self.envelope, TINY)


def compare(
    baseline: LossColumns,
    target: LossColumns,
    envelope: Sequence[LossColumns] = (),
    *,
    column: str | None = None,
    tolerance: Tolerance | None = None,
    smooth: int = 1,
) -> list[LossComparison]:
    """The loss, and the gradient norm where both runs have one. The first entry is the loss."""
    limits = tolerance or Tolerance.of(None)
    found = []
    for wanted, names in ((column, LOSS_NAMES), (None, NORM_NAMES)):
        mine, theirs = baseline.column(wanted, names), target.column(wanted, names)
        if mine is None or theirs is None:
            if names is LOSS_NAMES:
                side = baseline if mine is None else target
                raise JoyError(
                    "there is no loss in this file",
                    where=str(side.path),
                    help=f"--column NAME; it has {', '.join(side.columns)}",
                )
            continue
        others = [c.column(wanted, names) for c in envelope]
        runs = [values for other in others if other is not None for values in (other[1],)]
        name = mine[0]
        sizes = resolutions(name, baseline, target)
        found.append(
            one(name, mine[1], theirs[1], runs, limits, smooth, names is NORM_NAMES, sizes)
        )
    return found


def resolutions(name: str, *sides: LossColumns) -> Values:
    """The coarser resolution of the sides at each step."""
    found: Values = {}
    for side in sides:
        for step, size in side.columns.get(f"{name}_resolution", {}).items():
            found[step] = max(size, found.get(step, 0.0))
    return found


def drop_rounding(pairs: Sequence[tuple[float, float, float]], sizes: Values) -> Points:
    """The points, without differences that rounding to what was printed explains."""
    return [
        (step, a, a if abs(b - a) <= sizes.get(step, 0.0) * SLACK else b) for step, a, b in pairs
    ]


def one(
    name: str,
    baseline: Values,
    target: Values,
    others: Sequence[Values],
    limits: Tolerance,
    smooth: int,
    is_norm: bool,
    sizes: Values | None = None,
) -> LossComparison:
    """Compare one quantity over the steps that both runs have."""
    steps = sorted(baseline.keys() & target.keys())
    pairs = [(baseline[s], target[s]) for s in steps]
    bad = next((s for s, (a, b) in zip(steps, pairs, strict=True) if odd(a) != odd(b)), None)
    finite = [
        (s, a, b) for s, (a, b) in zip(steps, pairs, strict=True) if not odd(a) and not odd(b)
    ]
    finite = drop_rounding(finite, sizes or {})
    errors = [relative(a, b) for _, a, b in smooth_curve(finite, smooth)]
    mean = sum(errors) / len(errors) if errors else math.nan
    most = max(range(len(errors)), key=errors.__getitem__, default=None)
    above = sum(b > a for _, a, b in finite)
    below = sum(b < a for _, a, b in finite)
    spread = envelope_of(baseline, others, smooth)
    bounds = bounds_of(baseline, others, [s for s, _, _ in finite], limits)
    outside = leaves([(s, relative(a, b)) for s, a, b in finite], bounds, bad)
    outcome, status, reason = decide_curve(mean, spread, bad, limits, len(finite), is_norm)
    coarse = [sizes[s] / max(abs(a), TINY) for s, a, _ in finite if s in sizes] if sizes else []
    if outcome is Outcome.PASS and coarse and median(coarse) > limits.limit(STAGE, WARN):
        outcome = Outcome.INCONCLUSIVE
        reason = Text(
            "{reason}; it is printed too coarsely, in steps of {size} %",
            reason=reason,
            size=f"{100 * median(coarse):.2g}",
        )
    return LossComparison(
        name, outcome, status, reason, tuple(steps), tuple(pairs), mean,
        errors[most] if most is not None else math.nan,
        finite[most][0] if most is not None else math.nan,
        above, below, stats.sign_test(above, below),
        None if status is RecordStatus.PASS else outside,
        bad, spread, tuple(notes_of(above, below, limits)),
    )  # fmt: skip


def odd(value: float) -> bool:
    """Whether a value is inf or NaN."""
    return not math.isfinite(value)


def relative(a: float, b: float) -> float:
    """The target's distance from the baseline, in units of the baseline."""
    return abs(b - a) / max(abs(a), TINY)


def smooth_curve(
    points: Sequence[tuple[float, float, float]], window: int
) -> list[tuple[float, float, float]]:
    """Means over the last `window` steps, for losses that jump from batch to batch."""
    if window <= 1:
        return list(points)
    found = []
    for end in range(len(points)):
        part = points[max(0, end - window + 1) : end + 1]
        a, b = (sum(p[side] for p in part) / len(part) for side in (1, 2))
        found.append((points[end][0], a, b))
    return found


def envelope_of(baseline: Values, others: Sequence[Values], smooth: int) -> float | None:
    """The largest mean relative error among the baseline's other runs; None without any."""
    means = []
    for other in others:
        points = [(s, baseline[s], other[s]) for s in sorted(baseline.keys() & other.keys())]
        points = [p for p in points if not odd(p[1]) and not odd(p[2])]
        errors = [relative(a, b) for _, a, b in smooth_curve(points, smooth)]
        if errors:
            means.append(sum(errors) / len(errors))
    return max(means) if means else None


def bounds_of(
    baseline: Values, others: Sequence[Values], steps: Sequence[float], limits: Tolerance
) -> list[float]:
    """What a step's error may be: a multiple of the runs' largest so far, at least the warn limit
    where there is no other run."""
    factor, warn = limits.limit(STAGE, "envelope"), limits.limit(STAGE, WARN)
    if not others:
        return [warn] * len(steps)
    found, most = [], 0.0
    for step in steps:
        near = [
            relative(baseline[step], other[step])
            for other in others
            if step in other and not odd(other[step])
        ]
        most = max([most, *near])
        found.append(factor * most)
    return found


def leaves(
    errors: Sequence[tuple[float, float]], bounds: Sequence[float], bad: float | None
) -> float | None:
    """The first step outside its bound, or the first that is not finite on one side alone."""
    found = next(
        (step for (step, error), bound in zip(errors, bounds, strict=True) if error > bound), None
    )
    return min((s for s in (found, bad) if s is not None), default=None)


def decide_curve(
    mean: float,
    spread: float | None,
    bad: float | None,
    limits: Tolerance,
    n: int,
    is_norm: bool,
) -> tuple[Outcome, RecordStatus, str]:
    """Verdict, status and reason of one curve."""
    allowed = limits.limit(STAGE, "mean_relative_pass")
    warn = limits.limit(STAGE, WARN)
    factor = limits.limit(STAGE, "envelope")
    if bad is not None:
        return (
            Outcome.FAIL,
            RecordStatus.NAN_MISMATCH,
            Text("one side alone is not finite at step {bad}", bad=f"{bad:g}"),
        )
    if not n:
        return Outcome.INCONCLUSIVE, RecordStatus.UNCOMPARED, "the runs have no step in common"
    if spread is not None:
        ratio = mean / max(spread, TINY)
        shown = Text(
            "{mean} % apart, {ratio} times the baseline's own {spread} %",
            mean=f"{100 * mean:.3f}",
            ratio=f"{ratio:.2g}",
            spread=f"{100 * spread:.3f}",
        )
        if ratio <= factor:
            return Outcome.PASS, RecordStatus.PASS, shown
        if mean > allowed and not is_norm:
            return Outcome.FAIL, RecordStatus.FAIL, shown
        return (
            Outcome.PASS,
            RecordStatus.WARN,
            Text("{shown}, but below {allowed} %", shown=shown, allowed=f"{100 * allowed:g}"),
        )
    shown = Text("mean relative difference {mean} %", mean=f"{100 * mean:.3f}")
    if mean <= allowed:
        return Outcome.PASS, RecordStatus.PASS, shown
    if is_norm:  # the norm of a gradient swings more than the loss: it warns, it does not fail
        return Outcome.PASS, RecordStatus.WARN, shown
    if mean <= warn:
        return Outcome.PASS, RecordStatus.WARN, Text("{shown}: worth a look", shown=shown)
    return Outcome.FAIL, RecordStatus.FAIL, shown


def notes_of(above: int, below: int, limits: Tolerance) -> Iterator[str]:
    """What is odd without being a failure."""
    p = stats.sign_test(above, below)
    if p < limits.limit(STAGE, "sign_alpha"):
        side = "above" if above > below else "below"
        yield Text(
            "the target is {side} the baseline in {most} of {total} steps",
            side=side,
            most=max(above, below),
            total=above + below,
        )


def verdict(
    found: Sequence[LossComparison], limits: Tolerance, baseline: int, target: int
) -> Verdict:
    """The run's verdict of stage S6; `baseline` and `target` are numbers of recorded steps."""
    loss = found[0]
    order = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS)
    outcome = next(o for o in order if any(c.verdict is o for c in found))
    total = max(baseline, target)
    share = len(loss.steps) / total if total else 0.0
    coverage = RecordCoverage(share, len(loss.steps), total, 0.5)
    reasons = [Text("{name}: {reason}", name=c.name, reason=c.reason or "") for c in found]
    if outcome is Outcome.PASS and not coverage.enough:
        outcome = Outcome.INCONCLUSIVE
        reasons.insert(
            0,
            Text(
                "only {number} of {total} steps are in both runs",
                number=len(loss.steps),
                total=total,
            ),
        )
    allowed = limits.limit(STAGE, "mean_relative_pass")
    records = tuple(record(c, allowed) for c in found)
    notes = tuple(f"{c.name}: {note}" for c in found for note in c.notes)
    failed = next((c for c in found if c.verdict is Outcome.FAIL), None)
    place = divergence(failed, allowed) if failed is not None else None
    growth_of = {"steps": growth(loss)}
    return one_stage(STAGE, outcome, coverage, records, place, reasons, notes, growth=growth_of)


def record(one: LossComparison, allowed: float) -> Difference:
    """A curve as a record."""
    return Difference(
        one.name, 0, None, None, "mean relative error", one.mean_relative, allowed, one.status,
        STAGE, baseline_error=one.envelope, reason=Text.join("; ", [one.reason, *one.notes]),
    )  # fmt: skip


def divergence(one: LossComparison, allowed: float) -> FirstDivergence:
    """The step at which the curves part."""
    step = one.first_outside
    cause = "overflow" if one.first_nonfinite is not None and step == one.first_nonfinite else None
    row = replace(record(one, allowed), step=None if step is None else int(step))
    return place_of(row, cause=cause, evidence=one.reason)


def growth(one: LossComparison) -> list[dict[str, Any]]:
    """Points for the plots, at most `MOST_POINTS`, the first and the last among them."""
    stride = max(1, math.ceil(len(one.steps) / MOST_POINTS))
    keep = {*range(0, len(one.steps), stride), len(one.steps) - 1}
    if one.first_outside in one.steps:
        keep.add(one.steps.index(one.first_outside))
    return [
        {"step": one.steps[i], "loss": [number(value) for value in one.pairs[i]]}
        for i in sorted(keep)
        if 0 <= i < len(one.steps)
    ]


def document(
    found: Sequence[LossComparison], verdict: Verdict, limits: Tolerance
) -> dict[str, Any]:
    """`joymigrate.verdict/1` with the object `curve`."""
    loss = found[0]
    curve = {
        "n": len(loss.steps),
        "first_step": loss.steps[0] if loss.steps else None,
        "last_step": loss.steps[-1] if loss.steps else None,
        "limit_pass": limits.limit(STAGE, "mean_relative_pass"),
        "limit_warn": limits.limit(STAGE, WARN),
        "first_outside": loss.first_outside,
        "first_nonfinite": loss.first_nonfinite,
        "values": {one.name: curve_json(one) for one in found},
    }
    return {**verdict_json(verdict), "curve": curve}


def curve_json(one: LossComparison) -> dict[str, Any]:
    """The figures of one quantity."""
    figures: dict[str, Any] = as_json(one, "name", "steps", "pairs")
    return {**figures, "envelope_ratio": number(one.envelope_ratio)}
