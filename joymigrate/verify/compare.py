"""Two recordings → the verdict: stages in order, the first divergence, coverage. No torch.

Every process is judged by the baseline's process of the same number, in the same way; steps are
held against each other as one process would have them, and files as they lie on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.verify import (
    files_stage,
    identity,
    module_stage,
    printed_stage,
    repeat_runs,
    rest_stage,
    scope,
    watch_stage,
)
from joymigrate.verify.align import NameMap
from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, follow, keep_first
from joymigrate.verify.folding import (
    after_module,
    changed_before_call,
    chosen_after,
    given_before,
    in_other_mode,
    is_batch,
    of_other_shape,
    one_failure_per_fault,
    other_modes,
    overtaken,
)
from joymigrate.verify.free_stage import own_buffers, steps
from joymigrate.verify.judge import Judge
from joymigrate.verify.judgement import count_covered, judge, matches
from joymigrate.verify.merge import merge_ranks
from joymigrate.verify.model import Difference, Outcome, RecordStatus, StageResult, Verdict
from joymigrate.verify.module_stage import ModuleStage
from joymigrate.verify.pairing import Pairing, pair
from joymigrate.verify.rest_cause import cause_of_rest
from joymigrate.verify.tolerance import Tolerance

MOST_CLASSES = 20  # modules of another class that S0 lists


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides, and how their places are paired. `lost`: processes of the target that left no
    recording."""

    baseline: Bundle
    target: Bundle
    tolerance: Tolerance
    pairing: Pairing
    lost: int = 0

    @property
    def alike(self) -> bool:
        """Whether both programs have as many processes, whichever left a recording."""
        return self.baseline.world == self.target.world

    @property
    def complete(self) -> bool:
        """Whether every process of both sides is here."""
        return all(len(side.ranks) == side.world for side in (self.baseline, self.target))

    def twin_of(self, theirs: Rank) -> Rank:
        """The baseline's process of the same number, else its first."""
        same = (rank for rank in self.baseline.ranks if rank.number == theirs.number)
        return next(same, self.baseline.ranks[0])


def compare(
    baseline: Bundle,
    target: Bundle,
    tolerance: Tolerance,
    *,
    names: NameMap | None = None,
    exit_code: int = 0,
) -> Verdict:
    """Judge `target` by `baseline`. `exit_code` is the target program's."""
    all_there = len(target.ranks)
    lost, baseline, target = without_lost(baseline, target)
    ours, theirs = baseline.ranks[0], target.ranks[0]
    roots = theirs.json("replay.json").get("roots")
    pairing = pair(ours.program, theirs.program, names, roots)
    case = Comparison(baseline, target, tolerance, pairing, lost)
    found = Findings(replaced=find_replaced(ours.program, theirs.program, pairing))
    replayed = judge_rank(case, theirs, found)
    processes, elsewhere = 1, []
    for rank in target.ranks[1:]:
        other = Findings()
        judge_rank(case, rank, other)
        processes += any(row.status.compared for row in other.rows)
        join(found, other, rank.number)
        elsewhere += [(rank.number, item) for item in other.uncovered]
    stages = [environment(ours, theirs, found), *map(found.stage, found.asked)]
    coverage = count_covered(baseline, target, pairing, replayed, tolerance, found)
    verdict = judge(baseline, target, found, stages, replayed, coverage, exit_code, tolerance, lost)
    whole, left = scope.of(ours, theirs, replayed, coverage, found)
    left = (*left, *scope.fewer_digits(stages))
    have, world = len(target.ranks), target.world
    fewer = baseline.world - len(baseline.ranks) if baseline.world != world else 0
    unjudged = {"they left no recording in the baseline": fewer}
    if world > 1:
        whole["processes"] = {"compared": processes, "of": world}
        left = (*left, *left_out(elsewhere, left))
        unjudged |= {
            "nothing of them could be compared": have - processes,
            "they left no recording": lost,
            "the baseline has no recording of them": all_there - have,
            "neither side has a recording of them": world - all_there - lost,
        }
    left += tuple(
        {"what": "processes", "count": count, "reason": reason}
        for reason, count in unjudged.items()
        if count
    )
    return replace(verdict, covered=whole, uncovered=left)


def without_lost(baseline: Bundle, target: Bundle) -> tuple[int, Bundle, Bundle]:
    """How many of the target's processes left no recording, and both sides by the processes that
    can be held against each other: the parts of a process that is not there are no other data."""
    numbers = [{rank.number for rank in side.ranks} for side in (baseline, target)]
    if baseline.world != target.world:
        return target.world - len(target.ranks), baseline, target
    both = numbers[0] & numbers[1]
    if not both:
        raise JoyError(
            f"no process left a recording on both sides: {sorted(numbers[0])} in the baseline, "
            f"{sorted(numbers[1])} in the target",
            where=str(target.path),
            help="see what ended the other processes, and record or replay again",
        )
    ours, theirs = (
        replace(side, ranks=[rank for rank in side.ranks if rank.number in both])
        for side in (baseline, target)
    )
    return len(numbers[0] - both), ours, theirs


def judge_rank(case: Comparison, theirs: Rank, found: Findings) -> ModuleStage:
    """All stages of one process. Where the sides have other numbers of processes, of all but the
    first modules alone are judged: the baseline's first process taught them all."""
    first, ours = theirs is case.target.ranks[0], case.twin_of(theirs)
    replay = theirs.json("replay.json")
    if case.alike or first:
        found.rows += keep_first(list(identical(case, ours, theirs, replay)))
    noted = [r for r in found.rows if r.op == identity.TIE and r.status is RecordStatus.WARN]
    untied = [row for row in noted if row.consequence_of is None]
    for row in untied:
        found.leave_out(row.op, 1, row.reason)
    if untied and learns(ours):
        found.end = 1  # the first update moves them apart
        steps_after = max(0, ours.json("watch.json").get("steps", 0) - 1)
        found.leave_out("run", steps_after, watch_stage.PARTED)
    replayed = judge_replay(case, ours, theirs, replay, found)
    if not (case.alike or first):
        return replayed
    judge_the_rest(ours, theirs, case.alike, found)
    outputs = case.baseline.outputs if first else {}
    if outputs and case.lost:
        why = "a process that left no recording may write them"
        found.leave_out("files", len(outputs.get("files", ())), why)
        outputs = {}
    limits = repeat_runs.judge_of(
        ours, case.tolerance.judge, outputs, replayed.coarser(), len(case.target.ranks)
    )
    if first and (case.alike or case.complete):
        steps(case.baseline, case.target, case.pairing, replayed, found, limits)
    elif not first:
        own_buffers(ours, theirs, case.pairing, found, limits)
    judge_program(ours, theirs, replay, found, limits)
    judge_run(ours, theirs, replay, case.alike, found, limits)
    # S5P: printed numbers, where nothing before explains what departs.
    found.add(printed_stage.judge_printed(ours, theirs, limits, found))
    if outputs:  # S5F: files that the program wrote
        found.asked.append(files_stage.STAGE)
        found.add(files_stage.judge_files(outputs, case.target.outputs, limits, found))
    return replayed


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


def environment(ours: Rank, theirs: Rank, found: Findings) -> StageResult:
    """S0: what differs is listed, classes of modules too; numbers decide."""
    a, b = ours.program.get("environment", {}), theirs.program.get("environment", {})
    differing = identity.environment_differences(a, b)
    for name, (golden, target) in list(found.replaced.items())[:MOST_CLASSES]:
        differing.append(f"{identity.CLASS}{name}: {golden} → {target}")
    notes, details = tuple(differing), {"differs": differing}
    return StageResult("S0", Outcome.PASS, 1, 1, notes=notes, details=details)


def identical(
    case: Comparison, ours: Rank, theirs: Rank, replay: Mapping[str, Any]
) -> Iterator[Difference]:
    """S1: weights, buffers, batches."""
    a, b, names = ours.program, theirs.program, case.pairing.names
    watches = (ours.json("watch.json"), theirs.json("watch.json"))
    yield from identity.loads(*watches, replay.get("roots", {}), Display(a))
    kinds = [side.get("environment", {}).get("devices") for side in (a, b)]
    moved = bool(kinds[1] and not kinds[0])
    yield from identity.ties(a, b, names, trains=learns(ours), moved=moved)
    measured, trained = replay.get("identity", {}), repeat_runs.find_trained(ours)
    yield from identity.weights(a, b, names, measured, trained)
    yield from identity.copies(a, b, names)
    trains = bool(a.get("optimisers"))
    if case.alike:
        devices = kinds[0] != kinds[1]
        yield from identity.batches(ours, theirs, names, trains=trains, devices=devices)
        yield from identity.first_batch(*watches, Display(a))
    elif case.complete:
        for step in sorted(set(ours.steps) & set(theirs.steps)):
            mine, other = (merge_ranks(side.ranks, step) for side in (case.baseline, case.target))
            yield from identity.divided_batches(mine, other, ours, names)


def learns(rank: Rank) -> bool:
    """Whether a program computes gradients, or updates by them."""
    log = rank.json("log.json")
    return bool(log.get("updates") or log.get("backward"))


def judge_replay(
    case: Comparison, ours: Rank, theirs: Rank, replay: Mapping[str, Any], found: Findings
) -> ModuleStage:
    """S3 and S4: modules on the baseline's inputs."""
    table, view = ours.json("forced.json"), Display(ours.program)
    replayed = module_stage.judge_forced(
        table, replay, ours.program, theirs.program, case.tolerance, len(case.target.ranks)
    )
    judged = [j for j in replayed.rows if not matches(j.difference.module, case.pairing.ignored)]
    unequal = {row.module for row in found.rows if row.status.failed}
    in_other_mode(judged, other_modes(ours, theirs, case.pairing), view)
    of_other_shape(judged, found)
    rows = one_failure_per_fault(judged, unequal)
    for name in ("S3", "S4"):
        found.rows += [row for row in rows if row.stage == name]
        found.reasons[name] = None if table else why_not_taught(ours)
        if table and not replayed.passes:
            found.reasons[name] = "the target made no call that the baseline was taught by"
        if replayed.errors:
            found.broken[name] = replayed.errors[0]
    after_module(found)
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


def judge_the_rest(ours: Rank, theirs: Rank, alike: bool, found: Findings) -> None:
    """S4R: what the program computes outside of its models."""
    rows = rest_stage.judge_rest(ours, theirs, alike, found)
    overtaken(found, rows)
    formula = next((r for r in rows if r.status.failed), None)
    if formula is not None:
        # The batch differs because the program computes it otherwise, or did something else in a
        # step before; the weights because it has changed them by itself before the first call.
        at, changing = (formula.step or 0) + (formula.phase != "input"), formula
        found.follow(
            formula,
            lambda row: (
                row.stage == "S1"
                and ((row.step or 0) >= at if is_batch(row) else changed_before_call(row, changing))
            ),
        )
    unequal = found.failed("S1")
    if unequal is not None:  # other data or weights: what is computed from them differs as well
        rows = follow(rows, unequal)
    wrong = found.failed("S3", "S4")
    if wrong is not None:  # a value that a model keeps beside what it returns, or a choice by it
        chooses = any(rank.json("watch.json").get("chooses") for rank in (ours, theirs))
        module = wrong
        rows = follow(
            rows, module, lambda row: row.op == "given" or chosen_after(row, module, chooses)
        )
    found.rows += [
        replace(row, cause=cause_of_rest(ours, theirs, row)) if row.status.failed else row
        for row in rows
    ]
    if not ours.json("tape.json"):
        reason = "the baseline holds nothing of it: --stats-only, or an older joymigrate"
        found.reasons[rest_stage.STAGE] = reason


def judge_program(
    ours: Rank, theirs: Rank, replay: Mapping[str, Any], found: Findings, limits: Judge
) -> None:
    """Modes and schedules from the first step to the last, where nothing before explains them."""
    rows = rest_stage.judge_log(ours, theirs, replay.get("roots", {}), found, limits)
    overtaken(found, rows)
    found.add(keep_first(rows))


def judge_run(
    ours: Rank,
    theirs: Rank,
    replay: Mapping[str, Any],
    alike: bool,
    found: Findings,
    limits: Judge,
) -> None:
    """S5W: every step of the run, where nothing before explains what departs."""
    roots = replay.get("roots", {})
    rows = watch_stage.judge_run(ours, theirs, roots, alike, limits, found)
    overtaken(found, rows)
    given_before(found, rows)
    found.add(rows)


def join(found: Findings, other: Findings, number: int) -> None:
    """Count the rows of another process, and keep its first failure: of those of all processes the
    one in the earliest stage stays."""
    found.counted += other.rows
    found.doubts += other.doubts
    for name, why in other.broken.items():
        found.broken.setdefault(name, in_process(number, why))
    failed = [row for row in other.rows if row.status.failed]
    if not failed:
        return
    wrong = min(failed, key=lambda row: (row.stage, row.order))
    cause = wrong.cause
    if cause.words is not None:
        cause = cause._replace(words=in_process(number, cause.words))
    wrong = replace(wrong, reason=in_process(number, wrong.reason or wrong.metric), cause=cause)
    mine = [row.stage for row in found.rows if row.status.failed]
    if mine and min(mine) <= wrong.stage:
        found.add([wrong])
    else:
        found.follow(wrong)
        found.rows.append(wrong)


def left_out(
    elsewhere: list[tuple[int, dict[str, Any]]], left: tuple[Mapping[str, Any], ...]
) -> Iterator[dict[str, Any]]:
    """What is not covered of the other processes and not of the first (`left`): each once."""
    known = {(item["what"], str(item["reason"])) for item in left}
    for number, item in elsewhere:
        key = item["what"], str(item["reason"])
        if key not in known:
            known.add(key)
            yield {**item, "reason": in_process(number, item["reason"])}


def in_process(number: int, reason: Any) -> Text:
    """Words for what is so in one process."""
    return Text("in process {number}: {reason}", number=number, reason=reason)
