"""S5: optimisers apart from noise, then free steps where nothing before explains them. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify import free
from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.cause import of_operator
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, follow, keep_first
from joymigrate.verify.folding import under_setting
from joymigrate.verify.identity import TIE
from joymigrate.verify.judge import UNSEEN, Judge
from joymigrate.verify.merge import merge_ranks
from joymigrate.verify.model import Cause, Difference, Phase, RecordStatus
from joymigrate.verify.module_stage import UNLIKE, ModuleStage
from joymigrate.verify.optimiser_stage import OWN_UPDATE, optimisers
from joymigrate.verify.pairing import Pairing
from joymigrate.verify.rest_cause import cause_of_gradients
from joymigrate.verify.series import find_restarted, random_words
from joymigrate.verify.update_cause import cause_of_update
from joymigrate.verify.watch_ranks import drawing, draws_alike
from joymigrate.verify.watch_stage import ALONE

# What rounds over a kink (of an activation, a choice) changes a gradient at once, in few runs.
KINK = (
    "the gradient that comes back to {module} departs in the free run (error {error}); on the "
    "baseline's values its gradients agree: rounding over a kink, or what is done to it in between"
)


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
    wrong = found.failed()
    explained = wrong.module if wrong is not None else None
    rows = keep_first(list(optimisers(ours, theirs, pairing.names)))
    if wrong is not None and any(row.op == TIE and row.status.failed for row in found.rows):
        rows = follow(rows, wrong)  # an optimiser has one weight more, or one less
    rows = [explain(ours, theirs, row) if row.status.failed else row for row in rows]
    setting = next((r for r in rows if r.status.failed and r.metric == "setting"), None)
    if setting is not None:
        under_setting(setting, found)
    narrowed: Counter[str] = Counter()
    walked = explained is None and not any(row.status.failed for row in rows)
    alike = draws_alike(ours, theirs)
    random: set[str] = set() if alike else drawing(theirs)
    own = [row for row in rows if row.metric in ("update", OWN_UPDATE) and row.status.compared]
    found.updates |= {row.step or 0 for row in own if row.metric == OWN_UPDATE}
    reason, moved = None, 0.0
    alike_nulls: dict[free.Sibling, float] = {}
    series = [rank.json("watch.json").get("series", {}) for rank in (ours, theirs)]
    begins = find_restarted(*series) if series[1] else []
    for step in ours.steps:
        if step not in theirs.steps:
            continue
        table, other = merge_ranks(baseline.ranks, step), merge_ranks(target.ranks, step)
        compared = free.compare_step(table, other, pairing.names)
        one = free.FreeStep(compared, view, step, pairing.names, limits, moved, alike_nulls)
        moved = max(moved, one.weights_apart(limits))
        found.depth += free.depth(compared, view, step)
        narrowed.update(free.find_narrowed(compared))
        culprit = None
        if walked and explained is None and reason is None and step < found.end:
            a, b = (rank.facts(step).get("training", {}) for rank in (ours, theirs))
            culprit = one.mode(a, b) or one.first(random, bool(own))
        if culprit is not None and culprit.phase == "forward" and culprit.op != "mode":
            culprit, reason = tell_forward(culprit, replayed, alike, begins, found)
        if culprit is not None and culprit.op == free.INNER and replayed.passes:
            wide = limits.factor(UNSEEN) / limits.factor()
            if (culprit.value or 0.0) <= wide * (culprit.limit or 0.0):
                reason = Text(KINK, module=culprit.module, error=f"{culprit.value:.2g}")
                found.doubts.append(replace(culprit, status=RecordStatus.WARN, reason=reason))
                culprit = None
        if culprit is not None and culprit.reason == free.CHANGED:
            culprit = replace(culprit, cause=cause_of_gradients(ours, theirs, step))
        rows += free_rows(compared, one, culprit, explained)
        if culprit is not None:
            rows.append(culprit)
            explained = culprit.module
    found.rows += rows
    found.reasons["S5"] = reason
    if narrowed:  # outputs that the target computes in fewer digits than the baseline
        found.details["S5"] = {"narrowed": dict(narrowed)}
    left = missing(baseline, target)
    if not theirs.steps or not ours.steps:
        found.reasons["S5"] = "no step was recorded on both sides"
    elif left is not None:
        found.broken["S5"] = left


def own_buffers(ours: Rank, theirs: Rank, pairing: Pairing, found: Findings, limits: Judge) -> None:
    """Buffers of a process beside the first, which tables of all processes leave out: each has its
    own, and a wrapper that sends the first one's to all may be told not to."""
    view = Display(ours.program)
    random = set() if draws_alike(ours, theirs) else drawing(theirs)
    for step in ours.steps:
        if step not in theirs.steps or step >= found.end:
            continue
        compared = free.compare_step(ours.table(step), theirs.table(step), pairing.names)
        one = free.FreeStep(compared, view, step, pairing.names, limits)
        culprit = one.first(random, True)
        if culprit is not None and culprit.phase == Phase.STATE.value:
            found.add([culprit])
            return


def explain(ours: Rank, theirs: Rank, row: Difference) -> Difference:
    """What is known of why an optimiser's row failed: the first difference in what its code calls,
    or the operator that makes a weight's update wrong on this device."""
    a, b = (rank.facts(row.step or 0).get("optimisers", []) for rank in (ours, theirs))
    cause = None
    if row.metric == OWN_UPDATE:
        known = (one.get("own", {}).get("operator") for one in b)
        facts = next((operator for operator in known if operator), None)
        cause = Cause("arithmetic of the device", row.reason, "experiment")
        cause = of_operator(facts) if facts is not None else cause
    elif row.metric == "update":
        causes = (cause_of_update(mine, other) for mine, other in zip(a, b, strict=False))
        cause = next((cause for cause in causes if cause is not None), None)
    return row if cause is None else replace(row, cause=cause)


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
    departs: Difference,
    replayed: ModuleStage,
    alike: bool,
    begins: Sequence[str],
    found: Findings,
) -> tuple[Difference | None, Any]:
    """A module whose output departs in a free step: the failure, or words why it is none. A module
    that agrees on the baseline's inputs is a doubt, if it draws nothing at random. `begins` are
    generators whose state is another one as the run begins."""
    if replayed.unlike is not None and departs.module == replayed.unlike.module:
        return replace(departs, reason=UNLIKE), None
    if not replayed.passes and not alike:
        text = "without teacher forcing it can't be told whether {module} draws other numbers"
        return None, Text(text, module=departs.module)
    if not replayed.passes:
        return departs, None
    reason = why_apart(departs, replayed, begins)
    if departs.module not in replayed.drawn:
        found.doubts.append(replace(departs, status=RecordStatus.WARN, reason=reason))
    return None, reason


def why_apart(forward: Difference, replayed: ModuleStage, begins: Sequence[str]) -> Text:
    """Words for a module that departs in a free step and agrees on the baseline's inputs: what it
    draws at random, by name; the generators that begin otherwise; or that it was fed otherwise."""
    drawn = replayed.drawn.get(forward.module)
    fields = {"module": forward.module, "error": f"{forward.value:.2g}"}
    if drawn:
        text = "the free run departs at {module} (error {error}), which draws at random: {drawn}"
        return Text(text, **fields, drawn=", ".join(drawn))
    if begins:
        text = (
            "the free run departs at {module} (error {error}), and {generators} begin in another "
            "state than the baseline's: no seed, or another"
        )
        return Text(text, **fields, generators=", ".join(map(random_words, begins)))
    text = (
        "the free run departs at {module} (error {error}); the module agrees on the baseline's "
        "inputs, and its copy does what it does: what it is given, or its weights, have moved, by "
        "rounding or by what the program does in between"
    )
    return Text(text, **fields)


def free_rows(
    found: free.StepComparison,
    one: free.FreeStep,
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
        op = f"{table.kind[row]} {table.leaf[row]}".rstrip()
        explained_by = because if status is RecordStatus.WARN else None
        plain = one.difference(row, phase, op, reason)
        made.append(replace(plain, status=status, consequence_of=explained_by))
    return made
