"""Two recordings → the verdict: stages in order, the first divergence, coverage. No torch."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from joymigrate.language import Text
from joymigrate.verify import (
    crash,
    files_stage,
    forced,
    free,
    identity,
    printed_stage,
    rest_stage,
    scope,
    watch_stage,
)
from joymigrate.verify.align import NameMap
from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.curve_stage import judge_curve, losses
from joymigrate.verify.display import Display
from joymigrate.verify.forced import Forced, Judged
from joymigrate.verify.merge import merged
from joymigrate.verify.model import (
    Coverage,
    Difference,
    FirstDivergence,
    Outcome,
    StageResult,
    Status,
    Verdict,
)
from joymigrate.verify.optimiser_stage import optimisers
from joymigrate.verify.pairing import Pairing, pair
from joymigrate.verify.rest_cause import cause_of_rest
from joymigrate.verify.rest_stage import Rest
from joymigrate.verify.tolerance import Tolerance
from joymigrate.verify.update_cause import cause_of_update

# A gradient at a model's output in the very first step, of equal weights and data: an error above
# this is no rounding. Our own choice, tried on few clean runs (benchmarks/verify_whole.py).
FIRST = {"float64": 1e-6, "float32": 0.02, "float16": rest_stage.FREE, "bfloat16": rest_stage.FREE}


@dataclass(slots=True)
class Found:
    """What the stages found, before it is put together."""

    rows: list[Difference] = field(default_factory=list)
    stages: list[StageResult] = field(default_factory=list)
    causes: dict[int, tuple[str | None, str]] = field(default_factory=dict)  # id(row) → cause
    replaced: dict[str, tuple[str, str]] = field(default_factory=dict)  # module → its two classes
    depth: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def explained_by(self, row: Difference, cause: tuple[str, Any] | None) -> None:
        """Note what an experiment found for a failed row."""
        if cause is not None:
            self.causes[id(row)] = cause


def compare(
    baseline: Bundle,
    target: Bundle,
    tolerance: Tolerance,
    *,
    names: NameMap | None = None,
    exit_code: int = 0,
) -> Verdict:
    """Judge `target` by `baseline`. `exit_code` is the target program's."""
    ours, theirs = baseline.ranks[0], target.ranks[0]
    replay = theirs.json("replay.json")
    pairing = pair(ours.program, theirs.program, names, replay.get("roots"))
    found = Found(replaced=replaced(ours.program, theirs.program, pairing))
    environment(ours, theirs, found)
    identical(baseline, target, pairing, replay, found)
    replayed = judge_replay(ours, theirs, replay, tolerance, pairing, found)
    alike = len(baseline.ranks) == len(target.ranks)
    rest = judge_the_rest(ours, theirs, alike, found)
    steps(baseline, target, pairing, replayed, found, rest)
    judge_program(ours, theirs, replay, found, rest)
    watched = judge_run(ours, theirs, replay, alike, found)
    curve(baseline, target, tolerance, replayed, found)
    judge_prints(ours, theirs, watched, found)
    judge_files(baseline, target, watched, found)
    coverage = covered(baseline, target, pairing, replayed, tolerance, rest)
    verdict = judge(baseline, target, found, replayed, coverage, exit_code, rest)
    whole, left = scope.of(ours, theirs, replayed, rest, coverage, watched)
    return replace(verdict, covered=whole, uncovered=left)


def replaced(
    baseline: Mapping[str, Any], target: Mapping[str, Any], pairing: Pairing
) -> dict[str, tuple[str, str]]:
    """Modules, by their names for users, that are of another class in the target."""
    ours, theirs = forced.classes(baseline), forced.classes(target)
    view = Display(baseline)
    return {
        view(mine): (ours[mine], theirs[other])
        for mine, other in pairing.names.items()
        if mine in ours and other in theirs and ours[mine] != theirs[other]
    }


def environment(ours: Rank, theirs: Rank, found: Found) -> None:
    """S0: what differs is listed; numbers decide."""
    a, b = ours.program.get("environment", {}), theirs.program.get("environment", {})
    differing = identity.environment_differences(a, b)
    found.stages.append(
        StageResult(
            "S0", Outcome.PASS, 1, 1, notes=tuple(differing), details={"differs": differing}
        )
    )


def identical(
    baseline: Bundle, target: Bundle, pairing: Pairing, replay: Mapping[str, Any], found: Found
) -> None:
    """S1: weights, buffers, batches. One failure; the others follow from it."""
    ours, theirs = baseline.ranks[0], target.ranks[0]
    a, b = ours.program, theirs.program
    watches = (ours.json("watch.json"), theirs.json("watch.json"))
    rows = list(identity.loads(*watches, replay.get("roots", {}), Display(a)))
    rows += identity.weights(a, b, pairing.names, replay.get("identity", {}))
    trains = bool(a.get("optimisers"))
    kinds = (a.get("environment", {}).get("devices"), b.get("environment", {}).get("devices"))
    if len(baseline.ranks) == len(target.ranks):
        rows += identity.batches(
            ours, theirs, pairing.names, trains=trains, devices=kinds[0] != kinds[1]
        )
        rows += identity.loader_batches(a, b)
    else:
        for step in sorted(set(ours.steps) & set(theirs.steps)):
            tables = merged(baseline.ranks, step), merged(target.ranks, step)
            rows += identity.divided_batches(*tables, ours, pairing.names)
    rows = alone(rows, lambda first, row: True)
    found.rows += rows
    found.stages.append(stage("S1", rows))


def judge_replay(
    ours: Rank,
    theirs: Rank,
    replay: Mapping[str, Any],
    tolerance: Tolerance,
    pairing: Pairing,
    found: Found,
) -> Forced:
    """S3 and S4: modules on the baseline's inputs."""
    table = ours.json("forced.json")
    replayed = forced.judge_forced(table, replay, ours.program, theirs.program, tolerance)
    ignored = pairing.ignored
    judged = [j for j in replayed.rows if not matches(j.difference.module, ignored)]
    unequal = {row.module for row in found.rows if row.status.failed}
    in_other_mode(judged, other_modes(ours, theirs, pairing), Display(ours.program))
    judged = one_failure_per_fault(judged, unequal)
    for item in judged:
        if item.cause is not None:
            found.causes[id(item.difference)] = item.cause
    for name in ("S3", "S4"):
        rows = [item.difference for item in judged if item.difference.stage == name]
        reason = None if table else why_not_taught(ours)
        if table and not replayed.passes:
            reason = "the target made no call that the baseline was taught by"
        made = stage(name, rows, reason=reason)
        if replayed.errors and not any(row.status.failed for row in rows):
            made = replace(made, verdict=Outcome.INCONCLUSIVE, reason=replayed.errors[0])
        found.stages.append(made)
        found.rows += rows
    found.notes += replayed.notes
    return replayed


def why_not_taught(ours: Rank) -> Any:
    """Why the baseline holds no tensors of modules."""
    roots = ours.program.get("roots", [])
    if not roots:
        return "the program calls no modules: what it computes is judged as the rest of the step"
    sharded = [str(root["name"]) for root in roots if root.get("sharded")]
    if sharded:
        text = "parameters of {names} are spread over processes (DTensor): no process holds them"
        return Text(text, names=", ".join(sharded))
    return "the baseline kept no tensors (--stats-only, or too large)"


def judge_the_rest(ours: Rank, theirs: Rank, alike: bool, found: Found) -> Rest:
    """S4R: what the program computes outside of its models."""
    rest = rest_stage.judge_rest(ours, theirs, alike)
    formula = next((r for r in rest.rows if r.status.failed), None)
    if formula is not None:
        # The batch differs because the program computes it otherwise, or did something else in a
        # step before.
        since = (formula.step or 0) + (formula.phase != "input")
        same = [
            r.stage == "S1" and r.status.failed and is_batch(r) and (r.step or 0) >= since
            for r in found.rows
        ]
        found.rows = [
            replace(row, status=Status.WARN, consequence_of=formula.module) if there else row
            for row, there in zip(found.rows, same, strict=True)
        ]
        rows = [row for row in found.rows if row.stage == "S1"]
        found.stages = [stage("S1", rows) if s.stage == "S1" else s for s in found.stages]
    unequal = next((row for row in found.rows if row.stage == "S1" and row.status.failed), None)
    if unequal is not None:  # other data or weights: what is computed from them differs as well
        rest.rows = [
            replace(row, status=Status.WARN, consequence_of=unequal.module)
            if row.status.failed
            else row
            for row in rest.rows
        ]
    wrong = next((r for r in found.rows if r.status.failed and r.stage in ("S3", "S4")), None)
    if wrong is not None:  # a value that a model keeps beside what it returns
        rest.rows = [
            replace(row, status=Status.WARN, consequence_of=wrong.module)
            if row.status.failed and row.op == "given"
            else row
            for row in rest.rows
        ]
    wrong = next((row for row in rest.rows if row.status.failed), None)
    if wrong is not None:
        found.explained_by(wrong, cause_of_rest(ours, theirs, wrong))
    reason = None
    if not ours.json("tape.json"):
        reason = "the baseline holds nothing of it: --stats-only, or an older joymigrate"
    made = stage(rest_stage.STAGE, rest.rows, reason=reason)
    if rest.broken and made.verdict is not Outcome.FAIL:
        made = replace(made, verdict=Outcome.INCONCLUSIVE, reason=rest.broken)
    found.stages.append(made)
    found.rows += rest.rows
    return rest


def is_batch(row: Difference) -> bool:
    """Whether a row is about what a model was given."""
    return (row.op or "").startswith("batch")


def judge_program(
    ours: Rank, theirs: Rank, replay: Mapping[str, Any], found: Found, rest: Rest
) -> None:
    """Modes and schedules from the first step to the last, where nothing before explains them."""
    rows = rest_stage.judge_log(ours, theirs, replay.get("roots", {}), rest)
    rows = alone(consequences(rows, found), lambda first, row: True)
    found.rows += rows
    if any(row.status.failed for row in rows):
        found.stages = [
            replace(made, verdict=Outcome.FAIL, reason=None)
            if made.stage == rest_stage.STAGE
            else made
            for made in found.stages
        ]


def judge_run(
    ours: Rank, theirs: Rank, replay: Mapping[str, Any], alike: bool, found: Found
) -> watch_stage.Watched:
    """S5W: every step of the run, where nothing before explains what departs."""
    watched = watch_stage.judge_run(ours, theirs, replay.get("roots", {}), alike)
    watched.rows = consequences(watched.rows, found)
    found.stages.append(stage(watch_stage.STAGE, watched.rows))
    found.rows += watched.rows
    return watched


def judge_prints(ours: Rank, theirs: Rank, watched: watch_stage.Watched, found: Found) -> None:
    """S5P: printed numbers, where nothing before explains what departs."""
    printed = printed_stage.judge_printed(ours, theirs, watched)
    watched.printed = printed.compared, printed.of
    rows = consequences(printed.rows, found)
    found.stages.append(stage(printed_stage.STAGE, rows))
    found.rows += rows


def judge_files(
    baseline: Bundle, target: Bundle, watched: watch_stage.Watched, found: Found
) -> None:
    """S5F: files that the program wrote."""
    if not baseline.outputs:
        return
    limit = watch_stage.believed(watched, files_stage.MOST)
    files = files_stage.judge_files(baseline.outputs, target.outputs, limit)
    watched.files = files.compared, files.of
    watched.uncovered += files.uncovered
    rows = consequences(files.rows, found)
    found.stages.append(stage(files_stage.STAGE, rows))
    found.rows += rows


def consequences(rows: list[Difference], found: Found) -> list[Difference]:
    """What an earlier failure explains is a warning."""
    failed = next((row for row in found.rows if row.status.failed), None)
    if failed is None:
        return rows
    return [
        replace(row, status=Status.WARN, consequence_of=failed.module) if row.status.failed else row
        for row in rows
    ]


def other_modes(ours: Rank, theirs: Rank, pairing: Pairing) -> dict[str, str]:
    """Modules that are in another training mode than in the baseline, in a recorded step, and
    words for it."""
    made: dict[str, str] = {}
    for step in sorted(set(ours.steps) & set(theirs.steps)):
        a, b = (rank.facts(step).get("training", {}) for rank in (ours, theirs))
        for place, flags in a.items():
            other = b.get(pairing.names.get(place, place), flags)
            on = next((y for x, y in zip(flags, other, strict=False) if x != y), None)
            if on is not None:
                made[place] = free.IN_TRAINING if on else free.IN_EVALUATION
    return made


def in_other_mode(judged: list[Judged], other: Mapping[str, str], view: Display) -> None:
    """What a module computes in another mode is the fault of the outermost module in that mode."""
    for item in judged:
        root, _, path = item.place.partition(":")
        parts = path.split(".")
        above = [f"{root}:{'.'.join(parts[:n])}" for n in range(len(parts) + 1)]
        first = next((place for place in above if place in other), None)
        if first is not None and item.difference.status.failed:
            words = other[first]
            item.place, item.cause = first, ("training mode", words)
            item.difference = replace(item.difference, module=view(first), reason=words)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is left out on request."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def one_failure_per_fault(rows: list[Judged], before: set[str]) -> list[Judged]:
    """Keep a failure where a fault is first seen; what is explained by it becomes a warning.

    Cuts keep errors from travelling, so what is left to explain is: other values and other calls
    of the same module, its gradients, other modules of the same class, and one shortened
    arithmetic seen by every module. `before` are modules whose weights are not the baseline's.
    """
    failed = [item for item in rows if item.difference.status.failed]
    failed.sort(key=lambda item: (precedence(item.difference), item.difference.order))
    culprits: list[Judged] = []
    explained: dict[int, str] = {}
    for item in failed:
        known = next((c for c in culprits if explains(c, item)), None)
        if item.difference.module in before:
            explained[id(item)] = item.difference.module
        elif known is None:
            culprits.append(item)
        else:
            explained[id(item)] = known.difference.module
    for item in failed:
        if id(item) in explained:
            item.difference = replace(
                item.difference, status=Status.WARN, consequence_of=explained[id(item)]
            )
    return rows


def precedence(row: Difference) -> int:
    """Forward in fp32, gradients in fp32, then what only the native dtype shows."""
    return {"S3": 0, "S4": 1}.get(row.stage, 2)


def explains(culprit: Judged, item: Judged) -> bool:
    """Whether one failure is the reason of another."""
    if culprit.place == item.place or culprit.kind == item.kind:
        return True
    return culprit.rounding and item.rounding


def alone(rows: list[Difference], same: Any) -> list[Difference]:
    """The first failure stays; those that it explains become warnings."""
    first = next((row for row in rows if row.status.failed), None)
    if first is None:
        return rows
    return [
        replace(row, status=Status.WARN, consequence_of=first.module)
        if row is not first and row.status.failed and same(first, row)
        else row
        for row in rows
    ]


def steps(
    baseline: Bundle,
    target: Bundle,
    pairing: Pairing,
    replayed: Forced,
    found: Found,
    rest: Rest,
) -> None:
    """S5: optimisers apart from noise, then free steps where nothing before explains them."""
    ours, theirs = baseline.ranks[0], target.ranks[0]
    view = Display(ours.program)
    explained = next((row.module for row in found.rows if row.status.failed), None)
    rows = alone(list(optimisers(ours, theirs, pairing.names)), lambda first, row: True)
    code = next((r for r in rows if r.status.failed and r.metric == "update"), None)
    if code is not None:
        found.explained_by(code, first_update_cause(ours, theirs, code.step or 0))
    setting = next((r for r in rows if r.status.failed and r.metric == "setting"), None)
    if setting is not None:
        under_setting(setting, found)
    narrowed: Counter[str] = Counter()
    walked = not any(row.status.failed for row in rows) and explained is None
    reason, settled = None, 0.0
    for step in ours.steps:
        if step not in theirs.steps:
            continue
        table, other = merged(baseline.ranks, step), merged(target.ranks, step)
        compared = free.compare_step(table, other, pairing.names)
        walk = free.Walk(compared, view, step, pairing.names)
        found.depth += free.depth(compared, view, step)
        narrowed.update(free.narrowed(compared))
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
        if culprit is not None and culprit.op != "mode" and culprit.phase != "state":
            # Every part agrees on the baseline's values: what the free run shows is rounding. One
            # gradient whose terms cancel may be nothing else.
            single = str(culprit.op).startswith("gradient of") and culprit.phase == "backward"
            first = step == ours.steps[0] and step == 0
            most = FIRST[walk.dtype] if first else rest_stage.FREE
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


def first_update_cause(ours: Rank, theirs: Rank, step: int) -> tuple[str, Any] | None:
    """What explains the first wrong update of a step's optimisers."""
    a, b = (rank.facts(step).get("optimisers", []) for rank in (ours, theirs))
    causes = (cause_of_update(mine, other) for mine, other in zip(a, b, strict=False))
    return next((cause for cause in causes if cause is not None), None)


def under_setting(setting: Difference, found: Found) -> None:
    """What an optimiser is told is a fact: gradients and state that differ follow from it."""
    follows = ("gradients", "state", "optimiser", "schedule")
    found.rows = [
        replace(row, status=Status.WARN, consequence_of=setting.module)
        if row.status.failed
        and row.stage == rest_stage.STAGE
        and (row.phase in follows or row.op == "accumulated")
        and (row.step or 0) >= (setting.step or 0)
        else row
        for row in found.rows
    ]
    rows = [row for row in found.rows if row.stage == rest_stage.STAGE]
    found.stages = [
        replace(stage(s.stage, rows), reason=s.reason) if s.stage == rest_stage.STAGE else s
        for s in found.stages
    ]


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


def first_of(
    walk: free.Walk, replayed: Forced, probed: bool
) -> tuple[Difference | None, str | None]:
    """The first place that the free run blames, and words for what it can't tell."""
    forward = walk.forward()
    if forward is not None and replayed.passes:
        return None, (
            Text(
                "the free run departs at {module} (error {error}), where the module itself "
                "agrees on the baseline's inputs: random numbers or accumulated rounding",
                module=forward.module,
                error=f"{forward.value:.2g}",
            )
        )
    if forward is not None and "drop" in forward.module.lower():
        return None, "random numbers differ; without teacher forcing nothing after them compares"
    if forward is not None:
        return forward, None
    backward = None if replayed.passes else walk.backward()
    moved = None if probed else walk.parameters
    return walk.loss() or backward or walk.updates() or (moved() if moved else None), None


def later(walk: free.Walk, probed: bool, random: set[str], settled: float) -> Difference | None:
    """The first place of a later step, when all before it agree: gradients that were not cleared,
    a rule that shows from its second step on, weights that something else has changed."""
    return (
        walk.moved(random, settled)
        or walk.loss()
        or walk.updates()
        or (None if probed else walk.parameters())
    )


def drawing(theirs: Rank) -> set[str]:
    """ModuleNames that draw random numbers, as the replay found."""
    calls = theirs.json("replay.json").get("lessons", [])
    return {call["root"] for call in calls if any(call["draws"].values())}


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


def curve(
    baseline: Bundle, target: Bundle, tolerance: Tolerance, replayed: Forced, found: Found
) -> None:
    """S6: losses of the recorded steps."""
    made, rows = judge_curve(
        baseline,
        target,
        tolerance,
        explained=next((row.module for row in found.rows if row.status.failed), None),
        random=drawing(target.ranks[0]),
        taught=bool(replayed.passes),
    )
    found.stages.append(made)
    found.rows += rows


def stage(name: str, rows: Sequence[Difference], *, reason: str | None = None) -> StageResult:
    """The outcome of one stage by its rows."""
    counts = Counter(row.status.value for row in rows)
    compared = sum(1 for row in rows if row.status.compared)
    if not rows:
        return StageResult(name, Outcome.SKIPPED, reason=reason or "nothing to compare")
    failed = any(row.status.failed for row in rows)
    outcome = Outcome.FAIL if failed else Outcome.PASS if compared else Outcome.INCONCLUSIVE
    return StageResult(name, outcome, compared, len(rows), dict(counts), reason)


def covered(
    baseline: Bundle,
    target: Bundle,
    pairing: Pairing,
    replayed: Forced,
    tolerance: Tolerance,
    rest: Rest,
) -> Coverage:
    """Modules with parameters that the baseline called, and those that were compared."""
    ours, theirs = baseline.ranks[0], target.ranks[0]
    view = Display(ours.program)
    called: dict[str, bool] = {}
    records = compared = 0
    for step in ours.steps:
        table = ours.table(step)
        other = theirs.table(step) if step in theirs.steps else None
        for module, call, kind, leaf in table.keys():  # noqa: SIM118
            there = (pairing.names.get(module, module), call, kind, leaf)
            have = other is not None and other.place(there) is not None
            records, compared = records + 1, compared + have
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
    alone = not called and bool(rest.compared)  # a program without modules
    share = 1.0 - len(missing) / len(wanted) if wanted else 1.0 if called or alone else 0.0
    names = tuple(view(place) for place in missing)
    return Coverage(share, compared, records, tolerance.module_coverage, names)


def judge(
    baseline: Bundle,
    target: Bundle,
    found: Found,
    replayed: Forced,
    coverage: Coverage,
    exit_code: int,
    rest: Rest,
) -> Verdict:
    """Put the stages together."""
    failed = [row for row in found.rows if row.status.failed]
    first = min(failed, key=lambda row: (row.stage, row.order), default=None)
    outcome = Outcome.PASS
    reason: str | None = None
    whole = [s for s in found.stages if s.compared and not s.details.get("short")]
    decided = whole[-1].stage if whole else None
    doubts = [s for s in found.stages if s.verdict is Outcome.INCONCLUSIVE]
    broken = crash.of(target.ranks)
    if first is not None:
        outcome, decided = Outcome.FAIL, first.stage
    elif broken is not None:
        outcome, reason = Outcome.INCONCLUSIVE, crash.told(broken)
    elif exit_code:
        outcome, reason = (
            Outcome.INCONCLUSIVE,
            Text("the target's program ended with {exit_code}", exit_code=exit_code),
        )
    elif doubts:
        outcome, decided, reason = Outcome.INCONCLUSIVE, doubts[0].stage, doubts[0].reason
    elif not coverage.enough:
        outcome = Outcome.INCONCLUSIVE
        reason = Text(
            "only {modules} of the modules with parameters were compared (at least "
            "{limit}): {names}",
            modules=f"{coverage.modules:.0%}",
            limit=f"{coverage.limit:.0%}",
            names=", ".join(coverage.uncompared[:5]),
        )
    elif not replayed.passes and any(untold(row) for row in found.rows) and not rest.explains(None):
        outcome, reason = (
            Outcome.INCONCLUSIVE,
            (
                "errors have grown over the free steps; without teacher forcing (tensors in the "
                "baseline, and verify replay) it can't be told whether by rounding alone"
            ),
        )
    a, b = (losses(bundle).get(0, {}) for bundle in (baseline, target))
    curve_points = [{"step": s, "loss": [a[s], b[s]]} for s in sorted(a.keys() & b.keys())]
    environment_of = target.ranks[0].program.get("environment", {})
    return Verdict(
        outcome,
        decided,
        divergence(first, found) if first is not None else None,
        coverage,
        tuple(found.rows),
        tuple(found.stages),
        side(baseline),
        side(target),
        {"depth": found.depth, "steps": curve_points},
        bool(environment_of.get("rehearsal")),
        reason,
    )


def untold(row: Difference) -> bool:
    """An error of a free step that is too large to be called equal."""
    return row.stage == "S5" and row.status is Status.WARN and row.phase == "forward"


def divergence(row: Difference, found: Found) -> FirstDivergence:
    """The first failure with its cause."""
    cause, evidence = found.causes.get(id(row), (None, row.reason))
    if cause is None:
        cause = {"S1": "other weights" if "batch" not in (row.op or "") else "other data"}.get(
            row.stage
        )
        if row.stage == "S1" and (row.op or "").startswith("data loader"):
            cause = "other data"
        if row.stage == "S6" and row.status is Status.NAN_MISMATCH:
            cause = "overflow"
        if row.phase == "optimiser":
            cause = "optimiser settings" if row.metric == "setting" else "optimiser code"
        elif row.op == "loss" or (row.op or "").startswith("gradient"):
            cause = cause or ("gradient scale" if row.reason and "times" in row.reason else "loss")
        if row.reason == free.CHANGED:
            cause = "gradients after the backward pass"
        elif row.op == "mode":
            cause = "training mode"
    if cause is None and row.module in found.replaced:
        golden, target = found.replaced[row.module]
        cause = "another module"
        evidence = Text(
            "the module is {target} here and {golden} in the baseline", target=target, golden=golden
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
    )


def side(bundle: Bundle) -> dict[str, Any]:
    """What a side was."""
    rank = bundle.ranks[0]
    environment_of = rank.program.get("environment", {})
    return {
        "bundle": str(bundle.path),
        "complete": bundle.complete,
        "command": bundle.manifest.get("command"),
        "ranks": len(bundle.ranks),
        "steps": rank.steps,
        "packages": environment_of.get("packages"),
        "devices": environment_of.get("devices"),
        "notes": rank.program.get("notes", []),
        "crash": crash.of(bundle.ranks),
    }
