"""The stages put together: outcome, first divergence, coverage, sides. No torch."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.language import Text
from joymigrate.verify import crash
from joymigrate.verify.bundle import Bundle
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings
from joymigrate.verify.identity import LOADED, TIE
from joymigrate.verify.model import (
    Difference,
    FirstDivergence,
    Outcome,
    RecordCoverage,
    StageResult,
    Verdict,
)
from joymigrate.verify.module_stage import UNLIKE, ModuleStage
from joymigrate.verify.pairing import Pairing
from joymigrate.verify.recorded_losses import losses
from joymigrate.verify.repeat_runs import runs_of
from joymigrate.verify.rest_stage import OTHER_NUMBER, OTHER_VALUES
from joymigrate.verify.scope import KINDS
from joymigrate.verify.tolerance import Tolerance
from joymigrate.verify.watch_ranks import drawing

# Reasons that say what is seen, and name no cause.
UNEXPLAINED = (OTHER_NUMBER, OTHER_VALUES)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is left out on request."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def count_covered(
    baseline: Bundle,
    target: Bundle,
    pairing: Pairing,
    replayed: ModuleStage,
    tolerance: Tolerance,
    found: Findings,
) -> RecordCoverage:
    """Modules with parameters that the baseline called, and those that were compared; and how many
    tensors of the recorded steps were held against each other. A program without modules may have
    none of these: its results count."""
    ours, theirs = baseline.ranks[0], target.ranks[0]
    view = Display(ours.program)
    called: dict[str, bool] = {}
    free = [row for row in found.rows if row.stage == "S5" and row.metric == "relative_l2"]
    compared, records = sum(row.status.compared for row in free), len(free)
    for step in ours.steps:
        table = ours.table(step)
        other = theirs.table(step) if step in theirs.steps else None
        records += len(table) if other is None else 0
        for module, call, kind, leaf in table.keys():  # noqa: SIM118
            there = (pairing.names.get(module, module), call, kind, leaf)
            have = other is not None and other.place(there) is not None
            if kind == "out":
                called[module] = called.get(module, False) or (have and module in pairing.names)
    owners = {
        f"{root}:{m['path']}"
        for root, modules in ours.program.get("modules", {}).items()
        for m in modules
        if m["params"]
    }
    wanted = [p for p in called if p in owners and not matches(view(p), pairing.ignored)]
    missing = [p for p in wanted if not (called[p] or p in replayed.covered)]
    held, results = (
        sum(counted[kind] for kind in KINDS.values())
        for counted in (found.compared, found.recorded)
    )
    alone = not called and held > 0  # a program without modules
    if not called and not records:
        compared, records = held, results
    share = 1.0 - len(missing) / len(wanted) if wanted else 1.0 if called or alone else 0.0
    names = tuple(view(place) for place in missing)
    return RecordCoverage(share, compared, records, tolerance.module_coverage, names)


def judge(
    baseline: Bundle,
    target: Bundle,
    found: Findings,
    stages: Sequence[StageResult],
    replayed: ModuleStage,
    coverage: RecordCoverage,
    exit_code: int,
    tolerance: Tolerance,
    lost: int = 0,
) -> Verdict:
    """Put the stages together. `lost`: processes of the target that left no recording."""
    failed = [row for row in found.rows if row.status.failed]
    first = min(failed, key=lambda row: (row.stage, row.order), default=None)
    outcome = Outcome.PASS
    reason: str | None = None
    whole = [s for s in stages if s.compared]
    decided = whole[-1].stage if whole else None
    doubt = found.doubts[0] if found.doubts else None
    doubts = [s for s in stages if s.verdict is Outcome.INCONCLUSIVE]
    broken = crash.of(target.ranks)
    ranks = (*baseline.ranks, *target.ranks)
    recorder_errors = [e for rank in ranks for e in rank.program.get("recorder_errors", ())]
    if first is not None:
        outcome, decided = Outcome.FAIL, first.stage
    elif broken is not None:
        outcome, reason = Outcome.INCONCLUSIVE, crash.describe(broken)
    elif lost:
        outcome = Outcome.INCONCLUSIVE
        reason = Text("processes of the target that left no recording: {lost}", lost=lost)
    elif exit_code:
        outcome, reason = (
            Outcome.INCONCLUSIVE,
            Text("the target's program ended with {exit_code}", exit_code=exit_code),
        )
    elif recorder_errors:
        outcome, reason = Outcome.INCONCLUSIVE, recorder_errors[0]
    elif replayed.unlike is not None:
        outcome, decided = Outcome.INCONCLUSIVE, replayed.unlike.stage
        reason = Text("{module}: {why}", module=replayed.unlike.module, why=UNLIKE)
    elif doubts:
        outcome, decided, reason = Outcome.INCONCLUSIVE, doubts[0].stage, doubts[0].reason
    elif found.short is not None:
        outcome, reason = Outcome.INCONCLUSIVE, found.short
    elif doubt is not None:
        outcome, decided = Outcome.INCONCLUSIVE, doubt.stage
        text = "{module}, {op}: {reason}"
        reason = Text(text, module=doubt.module, op=doubt.op or "", reason=doubt.reason or "")
    elif not coverage.enough:
        outcome = Outcome.INCONCLUSIVE
        reason = Text(
            "only {modules} of the modules with parameters were compared (at least "
            "{limit}): {names}",
            modules=f"{coverage.modules:.0%}",
            limit=f"{coverage.limit:.0%}",
            names=", ".join(coverage.uncompared[:5]),
        )
    a, b = (losses(bundle).get(0, {}) for bundle in (baseline, target))
    if outcome is Outcome.PASS and not runs_of(baseline.ranks[0]):  # S5W has judged them by those
        reason = losses_apart(a, b, target, tolerance)
        outcome = Outcome.INCONCLUSIVE if reason is not None else outcome
    named = first if first is not None else doubt if outcome is not Outcome.PASS else None
    curve_points = [{"step": s, "loss": [a[s], b[s]]} for s in sorted(a.keys() & b.keys())]
    environment_of = target.ranks[0].program.get("environment", {})
    return Verdict(
        outcome,
        decided,
        divergence(named, found, baseline, target) if named is not None else None,
        coverage,
        tuple(found.rows),
        tuple(stages),
        side(baseline),
        side(target),
        {"depth": found.depth, "steps": curve_points},
        bool(environment_of.get("rehearsal")),
        reason,
    )


def losses_apart(
    ours: Mapping[int, float], theirs: Mapping[int, float], target: Bundle, tolerance: Tolerance
) -> Any:
    """Words for losses of recorded steps that are farther apart than a curve's may be, where no
    part of the step differs and no program that chooses or draws for itself explains it."""
    rank = target.ranks[0]
    watched = rank.json("watch.json")
    if drawing(rank) or watched.get("chooses") or watched.get("takes"):
        return None
    scale = max((abs(value) for value in ours.values()), default=0.0)
    for step in sorted(ours.keys() & theirs.keys()):
        error = abs(ours[step] - theirs[step]) / (scale or 1.0)
        if error > tolerance.limit("S6", "mean_relative_warn"):
            text = (
                "the loss of step {step} is {error} from the baseline's, and no place explains it"
            )
            return Text(text, step=step, error=f"{error:.1%}")
    return None


def divergence(
    row: Difference, found: Findings, baseline: Bundle, target: Bundle
) -> FirstDivergence:
    """The first failure with its cause."""
    known = row.cause
    cause, evidence, by = known.name, known.words, known.by
    if cause is None:
        cause = fact_of(row)
        by = "fact" if cause is not None else None
        if cause is None and getattr(row.reason, "template", row.reason) in UNEXPLAINED:
            evidence = Text("{reason}; no cause found", reason=row.reason)
    if (cause is None or by == "diff") and row.module in found.replaced:
        golden, mine = found.replaced[row.module]
        cause, by = "another module", "fact"
        evidence = Text(
            "the module is {target} here and {golden} in the baseline", target=mine, golden=golden
        )
    return FirstDivergence(
        module=row.module,
        call=row.call,
        phase=row.phase,
        op=row.op,
        metric=row.metric,
        value=row.value,
        limit=row.limit,
        stage=row.stage,
        step=row.step,
        cause=cause,
        evidence=evidence or row.reason,
        cause_by=by,
        line=known.lines or lines_of(row, baseline, target),
    )


def lines_of(row: Difference, baseline: Bundle, target: Bundle) -> tuple[str, str] | None:
    """Where both sides call what a row is about: the module or the model around it, an optimiser's
    step, the backward pass."""
    found = []
    for bundle in (baseline, target):
        rank = bundle.ranks[0]
        known = rank.program.get("lines", {})
        view = Display(rank.program)
        named = {view(place): line for place, line in known.items() if ":" in place}
        module = str(row.module or "")
        while module and module not in named:
            module = module.rpartition(".")[0]
        updates = row.phase in ("optimiser", "schedule")
        part = known.get("update" if updates else "loss") if updates or not module else None
        found.append(
            part or named.get(module) or known.get("loss") or next(iter(known.values()), "")
        )
    return (found[0], found[1]) if any(found) else None


def fact_of(row: Difference) -> str | None:
    """The cause that a failure is by itself; None where its place alone is known."""
    op, reason = str(row.op or ""), str(row.reason or "")
    if op in (TIE, LOADED):
        return "shared weights" if op == TIE else LOADED
    if row.stage == "S1":  # that data or weights are others is what is seen: nothing says why
        return None
    if row.phase == "loss" and row.value == math.inf:  # on one side alone
        return "overflow"
    if op == "mode":
        if reason in ("with gradients", "without gradients"):
            return "gradients on or off"
        return (
            "training mode" if "training mode" in reason else None
        )  # others: more calls, another model
    if row.phase == "optimiser":
        by_stage = {"S4R": "weights changed by hand", "S5": "optimiser code"}
        if row.metric == "relative_l2":  # a weight that departs tells not why
            return None
        return "optimiser settings" if row.metric == "setting" else by_stage.get(row.stage)
    if op.startswith("gradient") and "times" in reason:
        return "gradient scale"
    return None


def side(bundle: Bundle) -> dict[str, Any]:
    """What a side was."""
    rank = bundle.ranks[0]
    environment_of = rank.program.get("environment", {})
    return {
        "bundle": str(bundle.path),
        "complete": bundle.complete,
        "command": bundle.manifest.get("command"),
        "ranks": bundle.world,
        "steps": rank.steps,
        "packages": environment_of.get("packages"),
        "devices": environment_of.get("devices"),
        "notes": rank.program.get("notes", []),
        "crash": crash.of(bundle.ranks),
    }
