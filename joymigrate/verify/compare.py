"""Two recordings → the verdict: stages in order, the first divergence, coverage. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify import (
    files_stage,
    identity,
    module_stage,
    printed_stage,
    repeat_runs,
    rest_model,
    rest_stage,
    scope,
    watch_record,
    watch_stage,
)
from joymigrate.verify.align import NameMap
from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, stage
from joymigrate.verify.folding import (
    after_module,
    alone,
    consequences,
    given_before,
    in_other_mode,
    is_batch,
    of_other_shape,
    one_failure_per_fault,
    other_modes,
    overtaken,
)
from joymigrate.verify.free_stage import steps
from joymigrate.verify.judge import Judge
from joymigrate.verify.judgement import count_covered, judge, matches
from joymigrate.verify.merge import merge_ranks
from joymigrate.verify.model import (
    Difference,
    Outcome,
    RecordStatus,
    StageResult,
    Verdict,
)
from joymigrate.verify.module_stage import ModuleStage
from joymigrate.verify.pairing import Pairing, pair
from joymigrate.verify.process_stage import (
    judge_process_prints,
    judge_process_runs,
    judge_processes,
    left_out,
)
from joymigrate.verify.rest_cause import cause_of_rest, lines_of_rest
from joymigrate.verify.rest_model import Rest
from joymigrate.verify.tolerance import Tolerance

MOST_CLASSES = 20  # modules of another class that S0 lists


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
    found = Findings(replaced=find_replaced(ours.program, theirs.program, pairing))
    environment(ours, theirs, found)
    identical(baseline, target, pairing, replay, found)
    replayed = judge_replay(ours, theirs, replay, tolerance, pairing, found)
    alike = len(baseline.ranks) == len(target.ranks)
    rest = judge_the_rest(ours, theirs, alike, found)
    processes = judge_processes(baseline, target, tolerance, pairing, found)
    limits = repeat_runs.judge_of(ours, tolerance.judge, baseline.outputs, replayed.coarser())
    steps(baseline, target, pairing, replayed, found, limits)
    judge_program(ours, theirs, replay, found, rest)
    watched = judge_run(ours, theirs, replay, alike, found, rest.parted, limits)
    judge_process_runs(baseline, target, found, tolerance, limits.coarser)
    judge_prints(ours, theirs, watched, found, limits)
    judge_process_prints(baseline, target, found)
    judge_files(baseline, target, watched, found, limits)
    found.doubts += [row for row in watched.doubts if not any(r.status.failed for r in found.rows)]
    coverage = count_covered(baseline, target, pairing, replayed, tolerance, rest, found)
    verdict = judge(baseline, target, found, replayed, coverage, exit_code, rest, tolerance)
    whole, left = scope.of(ours, theirs, replayed, rest, coverage, watched)
    left = (*left, *scope.fewer_digits(found.stages))
    if len(target.ranks) > 1:
        whole["processes"] = {"compared": processes, "of": len(target.ranks)}
        left = (*left, *left_out(found, left, processes, len(target.ranks)))
    return replace(verdict, covered=whole, uncovered=left)


def find_replaced(
    baseline: Mapping[str, Any], target: Mapping[str, Any], pairing: Pairing
) -> dict[str, tuple[str, str]]:
    """Modules, by their names for users, that are of another class in the target."""
    ours, theirs = module_stage.classes(baseline), module_stage.classes(target)
    view = Display(baseline)
    return {
        view(mine): (ours[mine], theirs[other])
        for mine, other in pairing.names.items()
        if mine in ours and other in theirs and ours[mine] != theirs[other]
    }


def environment(ours: Rank, theirs: Rank, found: Findings) -> None:
    """S0: what differs is listed, classes of modules too; numbers decide."""
    a, b = ours.program.get("environment", {}), theirs.program.get("environment", {})
    differing = identity.environment_differences(a, b)
    for name, (golden, target) in list(found.replaced.items())[:MOST_CLASSES]:
        differing.append(f"{identity.CLASS}{name}: {golden} → {target}")
    found.stages.append(
        StageResult(
            "S0", Outcome.PASS, 1, 1, notes=tuple(differing), details={"differs": differing}
        )
    )


def identical(
    baseline: Bundle, target: Bundle, pairing: Pairing, replay: Mapping[str, Any], found: Findings
) -> None:
    """S1: weights, buffers, batches. One failure; the others follow from it."""
    ours, theirs = baseline.ranks[0], target.ranks[0]
    a, b = ours.program, theirs.program
    watches = (ours.json("watch.json"), theirs.json("watch.json"))
    rows = list(identity.loads(*watches, replay.get("roots", {}), Display(a)))
    rows += identity.ties(a, b, pairing.names)
    rows += identity.weights(a, b, pairing.names, replay.get("identity", {}))
    rows += identity.copies(a, b, pairing.names)
    trains = bool(a.get("optimisers"))
    kinds = (a.get("environment", {}).get("devices"), b.get("environment", {}).get("devices"))
    if len(baseline.ranks) == len(target.ranks):
        rows += identity.batches(
            ours, theirs, pairing.names, trains=trains, devices=kinds[0] != kinds[1]
        )
        rows += identity.loader_batches(a, b)
    else:
        for step in sorted(set(ours.steps) & set(theirs.steps)):
            tables = merge_ranks(baseline.ranks, step), merge_ranks(target.ranks, step)
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
    found: Findings,
) -> ModuleStage:
    """S3 and S4: modules on the baseline's inputs."""
    table = ours.json("forced.json")
    replayed = module_stage.judge_forced(table, replay, ours.program, theirs.program, tolerance)
    ignored = pairing.ignored
    judged = [j for j in replayed.rows if not matches(j.difference.module, ignored)]
    unequal = {row.module for row in found.rows if row.status.failed}
    in_other_mode(judged, other_modes(ours, theirs, pairing), Display(ours.program))
    of_other_shape(judged, found)
    judged = one_failure_per_fault(judged, unequal)
    for item in judged:
        if item.cause is not None:
            found.causes[id(item.difference)] = item.cause
        if item.lines is not None:
            found.lines[id(item.difference)] = item.lines
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
    after_module(found)
    view = Display(ours.program)
    replayed.unlike, replayed.uncopied = module_stage.unlike_copies(table, replay, view)
    return replayed


def why_not_taught(ours: Rank) -> Any:
    """Why the baseline holds no tensors of modules."""
    roots = ours.program.get("roots", [])
    if not roots:
        return "the program calls no modules: what it computes is judged as the rest of the step"
    sharded = [str(root["name"]) for root in roots if root.get("sharded")]
    if sharded:
        text = "parameters of {names} are spread over processes: no process holds them"
        return Text(text, names=", ".join(sharded))
    return "the baseline kept no tensors (--stats-only, or too large)"


def judge_the_rest(ours: Rank, theirs: Rank, alike: bool, found: Findings) -> Rest:
    """S4R: what the program computes outside of its models."""
    rest = rest_stage.judge_rest(ours, theirs, alike)
    overtaken(found, rest.rows)
    formula = next((r for r in rest.rows if r.status.failed), None)
    if formula is not None:
        # The batch differs because the program computes it otherwise, or did something else in a
        # step before; the weights because it has changed them by itself before the first call.
        since = (formula.step or 0) + (formula.phase != "input")
        same = [
            r.stage == "S1"
            and r.status.failed
            and ((r.step or 0) >= since if is_batch(r) else changed_before_call(r, formula))
            for r in found.rows
        ]
        found.rows = [
            replace(row, status=RecordStatus.WARN, consequence_of=formula.module) if there else row
            for row, there in zip(found.rows, same, strict=True)
        ]
        rows = [row for row in found.rows if row.stage == "S1"]
        found.stages = [stage("S1", rows) if s.stage == "S1" else s for s in found.stages]
    unequal = next((row for row in found.rows if row.stage == "S1" and row.status.failed), None)
    if unequal is not None:  # other data or weights: what is computed from them differs as well
        rest.rows = [
            replace(row, status=RecordStatus.WARN, consequence_of=unequal.module)
            if row.status.failed
            else row
            for row in rest.rows
        ]
    wrong = next((r for r in found.rows if r.status.failed and r.stage in ("S3", "S4")), None)
    if wrong is not None:  # a value that a model keeps beside what it returns, or a choice by it
        chooses = any(rank.json("watch.json").get("chooses") for rank in (ours, theirs))
        rest.rows = [
            replace(row, status=RecordStatus.WARN, consequence_of=wrong.module)
            if row.status.failed and (row.op == "given" or chosen_after(row, wrong, chooses))
            else row
            for row in rest.rows
        ]
    wrong = next((row for row in rest.rows if row.status.failed), None)
    if wrong is not None:
        found.explained_by(wrong, cause_of_rest(ours, theirs, wrong))
        lines = lines_of_rest(ours, theirs, wrong)
        if lines is not None:
            found.lines[id(wrong)] = lines
    reason = None
    if not ours.json("tape.json"):
        reason = "the baseline holds nothing of it: --stats-only, or an older joymigrate"
    made = stage(rest_model.STAGE, rest.rows, reason=reason)
    if rest.broken and made.verdict is not Outcome.FAIL:
        made = replace(made, verdict=Outcome.INCONCLUSIVE, reason=rest.broken)
    found.stages.append(made)
    found.rows += rest.rows
    return rest


def changed_before_call(weight: Difference, formula: Difference) -> bool:
    """Whether weights that differ at a model's first call are what the program made of them in a
    step by a formula that differs itself: a slow copy that is moved before it is asked."""
    names = [row.module.partition(".")[0] for row in (weight, formula)]
    whole = str(weight.op).startswith(("parameter ", "buffer "))
    return whole and formula.phase in ("state", "optimiser") and names[0] == names[1]


def chosen_after(row: Difference, wrong: Difference, chooses: bool) -> bool:
    """Whether a value belongs to a step in which a model computed something wrong, or a later one,
    of a program that `chooses` by what models return; another shape shows such a choice."""
    later = (row.step or 0) >= (wrong.step or 0) and row.phase in ("input", "output")
    return later and (chooses or str(row.reason).startswith("shape "))


def judge_program(
    ours: Rank, theirs: Rank, replay: Mapping[str, Any], found: Findings, rest: Rest
) -> None:
    """Modes and schedules from the first step to the last, where nothing before explains them."""
    rows = rest_stage.judge_log(ours, theirs, replay.get("roots", {}), rest)
    overtaken(found, rows)
    rows = alone(consequences(rows, found), lambda first, row: True)
    found.rows += rows
    if any(row.status.failed for row in rows):
        found.stages = [
            replace(made, verdict=Outcome.FAIL, reason=None)
            if made.stage == rest_model.STAGE
            else made
            for made in found.stages
        ]


def judge_run(
    ours: Rank,
    theirs: Rank,
    replay: Mapping[str, Any],
    alike: bool,
    found: Findings,
    parted: float,
    limits: Judge,
) -> watch_record.RunRows:
    """S5W: every step of the run, where nothing before explains what departs."""
    watched = watch_stage.judge_run(ours, theirs, replay.get("roots", {}), alike, limits, parted)
    overtaken(found, watched.rows)
    given_before(found, watched.rows)
    watched.rows = consequences(watched.rows, found)
    found.stages.append(stage(watch_stage.STAGE, watched.rows))
    found.rows += watched.rows
    return watched


def judge_prints(
    ours: Rank, theirs: Rank, watched: watch_record.RunRows, found: Findings, limits: Judge
) -> None:
    """S5P: printed numbers, where nothing before explains what departs."""
    printed = printed_stage.judge_printed(ours, theirs, limits, watched)
    watched.printed = printed.compared, printed.of
    rows = consequences(printed.rows, found)
    found.stages.append(stage(printed_stage.STAGE, rows))
    found.rows += rows


def judge_files(
    baseline: Bundle,
    target: Bundle,
    watched: watch_record.RunRows,
    found: Findings,
    limits: Judge,
) -> None:
    """S5F: files that the program wrote."""
    if not baseline.outputs:
        return
    chosen = math.isfinite(watched.chosen)
    files = files_stage.judge_files(baseline.outputs, target.outputs, limits, chosen)
    watched.files = files.compared, files.of
    watched.uncovered += files.uncovered
    watched.doubts += [row for row in files.rows if row.reason == watch_stage.CHOSEN]
    rows = consequences(files.rows, found)
    found.stages.append(stage(files_stage.STAGE, rows))
    found.rows += rows
