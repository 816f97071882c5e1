"""S5: optimisers apart from noise, then free steps where nothing before explains them. No torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from joymigrate.language import Text
from joymigrate.verify import (
    free,
    rest_model,
)
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
from joymigrate.verify.merge import merge_ranks
from joymigrate.verify.model import (
    Cause,
    Difference,
    Outcome,
    Status,
)
from joymigrate.verify.module_stage import UNLIKE, ModuleStage
from joymigrate.verify.optimiser_stage import OWN_UPDATE, optimisers
from joymigrate.verify.pairing import Pairing
from joymigrate.verify.rest_model import Rest
from joymigrate.verify.update_cause import cause_of_update
from joymigrate.verify.watch_ranks import drawing

# A gradient at a model's output in the very first step, of equal weights and data: an error above
# this is no rounding. Our own choice, tried on few clean runs (benchmarks/verify_whole.py).
FIRST = {"float64": 1e-6, "float32": 0.02, "float16": rest_model.FREE, "bfloat16": rest_model.FREE}


def steps(
    baseline: Bundle,
    target: Bundle,
    pairing: Pairing,
    replayed: ModuleStage,
    found: Findings,
    rest: Rest,
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
    walked = not any(row.status.failed for row in rows) and explained is None
    reason, settled = None, 0.0
    for step in ours.steps:
        if step not in theirs.steps:
            continue
        table, other = merge_ranks(baseline.ranks, step), merge_ranks(target.ranks, step)
        compared = free.compare_step(table, other, pairing.names)
        walk = free.Walk(compared, view, step, pairing.names)
        found.depth += free.depth(compared, view, step)
        narrowed.update(free.find_narrowed(compared))
        culprit = None
        probed = any(row.metric == "update" and row.status.compared for row in rows)
        if walked and explained is None:
            a, b = (rank.facts(step).get("training", {}) for rank in (ours, theirs))
            culprit = walk.mode(a, b, settled)
        if culprit is not None:
            pass
        elif walked and step == ours.steps[0]:
            culprit, reason = first_of(walk, replayed, probed)
        elif walked and reason is None and explained is None:
            culprit = later(walk, probed, drawing(theirs), settled)
        if culprit is None and walked and explained is None:
            culprit = walk.buffers()
        if culprit is not None and not certain(culprit):
            # Every part agrees on the baseline's values: what the free run shows is rounding. One
            # gradient whose terms cancel may be nothing else.
            single = str(culprit.op).startswith("gradient of") and culprit.phase == "backward"
            first = step == ours.steps[0] and step == 0
            most = FIRST[walk.dtype] if first else rest_model.FREE
            single = single and not (first and (culprit.value or 0.0) > most)
            if rest.explains(walk.typical("grad") if single else culprit.value, most):
                culprit = None
        settled = max(walk.worst("param"), 2.0**-20)
        rows += free_rows(compared, walk, step, culprit, explained)
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
            replace(row, status=Status.WARN, consequence_of=code.module) if is_too_far(row) else row
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


def certain(culprit: Difference) -> bool:
    """Whether rounding can't be what a free run blames."""
    return culprit.op == "mode" or culprit.phase == "state" or culprit.metric == free.STRETCHED


def first_of(
    walk: free.Walk, replayed: ModuleStage, probed: bool
) -> tuple[Difference | None, str | None]:
    """The first place that the free run blames, and words for what it can't tell."""
    forward = walk.forward()
    unlike = replayed.unlike.module if replayed.unlike is not None else None
    if forward is not None and forward.module == unlike:
        return replace(forward, reason=UNLIKE), None
    if forward is not None and replayed.passes:
        return walk.stretched() if walk.step == 0 else None, why_apart(forward, replayed)
    if forward is not None and "drop" in forward.module.lower():
        return None, "random numbers differ; without teacher forcing nothing after them compares"
    if forward is not None:
        return forward, None
    backward = None if replayed.passes else walk.backward()
    moved = None if probed else walk.parameters
    return walk.loss() or backward or walk.updates() or (moved() if moved else None), None


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


def later(walk: free.Walk, probed: bool, random: set[str], settled: float) -> Difference | None:
    """The first place of a later step, when all before it agree: gradients that were not cleared,
    a rule that shows from its second step on, weights that something else has changed."""
    return (
        walk.moved(random, settled)
        or walk.loss()
        or walk.updates()
        or (None if probed else walk.parameters())
    )


def free_rows(
    found: free.Compared,
    walk: free.Walk,
    step: int,
    culprit: Difference | None,
    explained: str | None,
) -> list[Difference]:
    """Each record of a step with its error: IDENTICAL, PASS, or WARN where it has grown."""
    table, least = found.table, free.LEAST[walk.dtype]
    made = []
    for row in range(len(table)):
        if culprit is not None and row == culprit.order:
            continue
        error = found.errors[row]
        phase = free.PHASES.get(table.kind[row])
        if np.isnan(error):
            status, value = Status.UNCOMPARED, None
        else:
            value = float(error)
            status = (
                Status.IDENTICAL if value == 0 else Status.PASS if value <= least else Status.WARN
            )
        because = culprit.module if culprit is not None else explained
        made.append(
            Difference(
                module=walk.view(table.module[row]),
                call=table.call[row],
                phase=phase.value if phase else "forward",
                op=f"{table.kind[row]} {table.leaf[row]}".rstrip(),
                metric="relative_l2",
                value=value,
                limit=least,
                status=status,
                stage="S5",
                step=step,
                consequence_of=because if status is Status.WARN else None,
                order=row,
            )
        )
    return made
