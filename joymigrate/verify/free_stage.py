"""S5: optimisers apart from noise, then free steps where nothing before explains them. No torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify import free
from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.cause import of_operator
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, stage
from joymigrate.verify.folding import (
    alone,
    consequences,
    under_setting,
)
from joymigrate.verify.identity import TIE, is_too_far
from joymigrate.verify.judge import Judge
from joymigrate.verify.merge import merge_ranks
from joymigrate.verify.model import (
    Cause,
    Difference,
    Outcome,
    Phase,
    RecordStatus,
)
from joymigrate.verify.module_stage import UNLIKE, ModuleStage
from joymigrate.verify.optimiser_stage import OWN_UPDATE, optimisers
from joymigrate.verify.pairing import Pairing
from joymigrate.verify.update_cause import cause_of_update
from joymigrate.verify.watch_ranks import drawing, draws_alike
from joymigrate.verify.watch_stage import ALONE


def steps(
    baseline: Bundle,
    target: Bundle,
    pairing: Pairing,
    replayed: ModuleStage,
    found: Findings,
    limits: Judge,
) -> None:
    """S5: optimisers apart from noise, then free steps where nothing before explains them."""
    ours, theirs = baseline.ranks[0], target.ranks[0]
    view = Display(ours.program)
    explained = next((row.module for row in found.rows if row.status.failed), None)
    rows = alone(list(optimisers(ours, theirs, pairing.names)), lambda first, row: True)
    if any(row.op == TIE and row.status.failed for row in found.rows):
        rows = consequences(rows, found)  # an optimiser has one weight more, or one less
    code = next((r for r in rows if r.status.failed and r.metric == "update"), None)
    own = next((r for r in rows if r.status.failed and r.metric == OWN_UPDATE), None)
    if own is not None:
        found.explained_by(own, cause_of_own(theirs, own))
    if code is not None:
        found.explained_by(code, first_update_cause(ours, theirs, code.step or 0))
        follow_rule(code, found)
    setting = next((r for r in rows if r.status.failed and r.metric == "setting"), None)
    if setting is not None:
        under_setting(setting, found)
    narrowed: Counter[str] = Counter()
    walked = explained is None and not any(row.status.failed for row in rows)
    alike = draws_alike(ours, theirs)
    random: set[str] = set() if alike else drawing(theirs)
    judged = any(row.metric in ("update", OWN_UPDATE) and row.status.compared for row in rows)
    reason = None
    for step in ours.steps:
        if step not in theirs.steps:
            continue
        table, other = merge_ranks(baseline.ranks, step), merge_ranks(target.ranks, step)
        compared = free.compare_step(table, other, pairing.names)
        one = free.FreeStep(compared, view, step, pairing.names, limits)
        found.depth += free.depth(compared, view, step)
        narrowed.update(free.find_narrowed(compared))
        culprit = None
        if walked and explained is None and reason is None:
            a, b = (rank.facts(step).get("training", {}) for rank in (ours, theirs))
            culprit = one.mode(a, b) or one.first(random, judged)
        if culprit is not None and culprit.phase == "forward" and culprit.op != "mode":
            culprit, reason = tell_forward(culprit, replayed, alike, found)
        rows += free_rows(compared, one, step, culprit, explained)
        if culprit is not None:
            rows.append(culprit)
            explained = culprit.module
    found.rows += rows
    made = stage("S5", rows, reason=reason)
    if narrowed:  # outputs that the target computes in fewer digits than the baseline
        made = replace(made, details={"narrowed": dict(narrowed)})
    if not theirs.steps or not ours.steps:
        made = replace(made, verdict=Outcome.SKIPPED, reason="no step was recorded on both sides")
    elif made.verdict is not Outcome.FAIL and missing(baseline, target):
        made = replace(made, verdict=Outcome.INCONCLUSIVE, reason=missing(baseline, target))
    found.stages.append(made)


def follow_rule(code: Difference, found: Findings) -> None:
    """Weights that training made elsewhere (an average) follow from an optimiser's other rule."""
    if any(is_too_far(row) for row in found.rows):
        found.rows = [
            replace(row, status=RecordStatus.WARN, consequence_of=code.module)
            if is_too_far(row)
            else row
            for row in found.rows
        ]
        rows = [row for row in found.rows if row.stage == "S1"]
        found.stages = [stage("S1", rows) if s.stage == "S1" else s for s in found.stages]


def first_update_cause(ours: Rank, theirs: Rank, step: int) -> Cause | None:
    """What explains the first wrong update of a step's optimisers."""
    a, b = (rank.facts(step).get("optimisers", []) for rank in (ours, theirs))
    causes = (cause_of_update(mine, other) for mine, other in zip(a, b, strict=False))
    return next((cause for cause in causes if cause is not None), None)


def cause_of_own(theirs: Rank, row: Difference) -> Cause | None:
    """The operator that makes a weight's update wrong on this device."""
    held = theirs.facts(row.step or 0).get("optimisers", [])
    known = (one.get("own", {}).get("operator") for one in held)
    facts = next((operator for operator in known if operator), None)
    if facts is not None:
        return of_operator(facts)
    return Cause("arithmetic of the device", row.reason, "experiment")


def missing(baseline: Bundle, target: Bundle) -> str | None:
    """Words for steps of the baseline that the target was to record and did not come to."""
    wanted = [step for step in baseline.ranks[0].steps if step in target.asked]
    have = [step for step in wanted if step in target.ranks[0].steps]
    if len(have) == len(wanted):
        return None
    counted = Text(
        "the target recorded {have} of the baseline's {wanted} steps",
        have=len(have),
        wanted=len(wanted),
    )
    stop = target.manifest.get("stopped")
    return Text("{counted} ({why})", counted=counted, why=stop["why"]) if stop else counted


def tell_forward(
    departs: Difference, replayed: ModuleStage, alike: bool, found: Findings
) -> tuple[Difference | None, Any]:
    """A module whose output departs in a free step: the failure, or words why it is none. A module
    that agrees on the baseline's inputs is a doubt, if it draws nothing at random."""
    if replayed.unlike is not None and departs.module == replayed.unlike.module:
        return replace(departs, reason=UNLIKE), None
    if not replayed.passes and not alike:
        text = "without teacher forcing it can't be told whether {module} draws other numbers"
        return None, Text(text, module=departs.module)
    if not replayed.passes:
        return departs, None
    reason = why_apart(departs, replayed)
    if departs.module not in replayed.drawn:
        found.doubts.append(replace(departs, status=RecordStatus.WARN, reason=reason))
    return None, reason


def why_apart(forward: Difference, replayed: ModuleStage) -> Text:
    """Words for a module that departs in a free step and agrees on the baseline's inputs: what it
    draws at random, by name, or by how much rounding it was fed it has grown."""
    drawn = replayed.drawn.get(forward.module)
    fields = {"module": forward.module, "error": f"{forward.value:.2g}"}
    if drawn:
        text = "the free run departs at {module} (error {error}), which draws at random: {drawn}"
        return Text(text, **fields, drawn=", ".join(drawn))
    text = (
        "the free run departs at {module} (error {error}); the module agrees on the baseline's "
        "inputs, and its copy does what it does: it makes that of rounding in what it is given"
    )
    return Text(text, **fields)


def free_rows(
    found: free.StepComparison,
    one: free.FreeStep,
    step: int,
    culprit: Difference | None,
    explained: str | None,
) -> list[Difference]:
    """Each record of a step with its error: IDENTICAL, PASS, WARN where it is farther off than the
    baseline's own runs, UNCOMPARED where nobody knows how far those are."""
    table, made = found.table, []
    because = culprit.module if culprit is not None else explained
    for row, decided in enumerate(one.decided):
        if culprit is not None and row == culprit.order:
            continue
        status, reason = RecordStatus.UNCOMPARED, None
        if decided is not None and not decided.value:
            status = RecordStatus.IDENTICAL
        elif decided is not None and decided.limit is None:
            reason = ALONE
        elif decided is not None:
            status = RecordStatus.WARN if one.departs(row) else RecordStatus.PASS
        phase = free.PHASES.get(table.kind[row], Phase.FORWARD)
        made.append(
            Difference(
                module=one.view(table.module[row]),
                call=table.call[row],
                phase=phase.value,
                op=f"{table.kind[row]} {table.leaf[row]}".rstrip(),
                metric="relative_l2",
                value=None if decided is None else decided.value,
                limit=None if decided is None else decided.limit,
                status=status,
                stage="S5",
                step=step,
                reason=reason,
                consequence_of=because if status is RecordStatus.WARN else None,
                order=row,
            )
        )
    return made
