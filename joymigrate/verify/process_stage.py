"""Every process of a distributed program but the first, against the baseline's process of the same
number: data and weights (S1), modules (S3, S4), the rest of the step, modes and schedules (S4R),
the whole run (S5W), printed numbers (S5P).

Data-parallel processes hold whole weights, and each is taught alone. Where the sides have other
numbers of processes, modules alone are judged: the baseline's first process taught them all. No
torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify import (
    identity,
    module_stage,
    printed_stage,
    repeat_runs,
    rest_model,
    rest_stage,
    watch_stage,
)
from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings
from joymigrate.verify.folding import in_other_mode, one_failure_per_fault, other_modes
from joymigrate.verify.judgement import matches
from joymigrate.verify.model import Cause, Difference, Outcome, RecordStatus, StageResult
from joymigrate.verify.pairing import Pairing
from joymigrate.verify.rest_model import Rest
from joymigrate.verify.tolerance import Tolerance


@dataclass(slots=True)
class ProcessRows:
    """What was found in one process: a failure's cause, and stages that could not be judged."""

    number: int
    rows: list[Difference] = field(default_factory=list)
    causes: list[tuple[Difference, Cause]] = field(default_factory=list)
    doubts: dict[str, Any] = field(default_factory=dict)  # stage → why
    uncovered: list[dict[str, Any]] = field(default_factory=list)

    def cause(self, wrong: Difference) -> Cause | None:
        """Why a row failed, by experiment."""
        return next((cause for row, cause in self.causes if row is wrong), None)


def judge_processes(
    baseline: Bundle, target: Bundle, tolerance: Tolerance, pairing: Pairing, found: Findings
) -> int:
    """Judge the steps of all processes but the first; returns how many of all were judged. Of each,
    the first failure is kept; what passes is counted in its stage."""
    judged = 1
    alike = len(baseline.ranks) == len(target.ranks)
    for theirs in target.ranks[1:]:
        ours = twin_of(theirs, baseline)
        process = steps_of(ours, theirs, alike, tolerance, pairing)
        judged += any(row.status.compared for row in process.rows)
        add(found, process)
    return judged


def judge_process_runs(
    baseline: Bundle, target: Bundle, found: Findings, tolerance: Tolerance, coarser: float
) -> None:
    """Judge the whole run of all processes but the first, after that of the first: modes and
    schedules, then the numbers of every step. `judge_process_prints` judges what they print.
    `coarser`: how many times coarser than the baseline's machine the target rounds."""
    if len(baseline.ranks) != len(target.ranks):
        return
    for theirs in target.ranks[1:]:
        ours = twin_of(theirs, baseline)
        roots = theirs.json("replay.json").get("roots", {})
        rest = Rest()
        rows = rest_stage.judge_log(ours, theirs, roots, rest)
        add(found, ProcessRows(theirs.number, rows, uncovered=rest.uncovered))
        limits = repeat_runs.judge_of(ours, tolerance.judge, {}, coarser)
        watched = watch_stage.judge_run(ours, theirs, roots, True, limits, rest.parted)
        add(found, ProcessRows(theirs.number, watched.rows, uncovered=watched.uncovered))
        found.watched[theirs.number] = watched, limits


def judge_process_prints(baseline: Bundle, target: Bundle, found: Findings) -> None:
    """Judge what all processes but the first print, after that of the first."""
    for theirs in target.ranks[1:]:
        if theirs.number not in found.watched:
            continue
        watched, limits = found.watched[theirs.number]
        known = len(watched.uncovered)
        ours = twin_of(theirs, baseline)
        printed = printed_stage.judge_printed(ours, theirs, limits, watched)
        left = watched.uncovered[known:]
        add(found, ProcessRows(theirs.number, printed.rows, uncovered=left))


def twin_of(theirs: Rank, baseline: Bundle) -> Rank:
    """The baseline's process of the same number, else its first."""
    same = (rank for rank in baseline.ranks if rank.number == theirs.number)
    return next(same, baseline.ranks[0])


def steps_of(
    ours: Rank, theirs: Rank, alike: bool, tolerance: Tolerance, pairing: Pairing
) -> ProcessRows:
    """All rows of the recorded steps of one process, stage by stage."""
    process = ProcessRows(theirs.number)
    replay = theirs.json("replay.json")
    a, b = ours.program, theirs.program
    if alike:
        process.rows += data_of(ours, theirs, pairing, replay)
    made = module_stage.judge_forced(ours.json("forced.json"), replay, a, b, tolerance)
    judged = [j for j in made.rows if not matches(j.difference.module, pairing.ignored)]
    in_other_mode(judged, other_modes(ours, theirs, pairing), Display(a))
    judged = one_failure_per_fault(judged, set())
    judged.sort(key=lambda item: (item.difference.stage, item.difference.order))
    process.rows += [item.difference for item in judged]
    process.causes += [(item.difference, item.cause) for item in judged if item.cause is not None]
    if made.errors:
        process.doubts |= dict.fromkeys(("S3", "S4"), made.errors[0])
    if alike:
        rest = rest_stage.judge_rest(ours, theirs, True)
        process.rows += rest.rows
        process.uncovered += rest.uncovered
        if rest.broken:
            process.doubts[rest_model.STAGE] = rest.broken
    return process


def data_of(ours: Rank, theirs: Rank, pairing: Pairing, replay: Any) -> Iterator[Difference]:
    """Weights and batches of one process."""
    a, b = ours.program, theirs.program
    yield from identity.weights(a, b, pairing.names, replay.get("identity", {}))
    trains = bool(a.get("optimisers"))
    kinds = [side.get("environment", {}).get("devices") for side in (a, b)]
    yield from identity.batches(
        ours, theirs, pairing.names, trains=trains, devices=kinds[0] != kinds[1]
    )
    yield from identity.loader_batches(a, b)


def add(found: Findings, process: ProcessRows) -> None:
    """Count one process's rows in their stages, and keep its first failure: a consequence where an
    earlier one is known."""
    found.elsewhere += [(process.number, item) for item in process.uncovered]
    wrong = next((row for row in process.rows if row.status.failed), None)
    failed = None
    if wrong is not None:
        row = keep_failure(found, process, wrong)
        found.rows.append(row)
        failed = row.stage if row.status.failed else None
    compared = Counter(row.stage for row in process.rows if row.status.compared)
    recorded = Counter(row.stage for row in process.rows)
    found.stages = [
        count_records(made, compared[made.stage], recorded[made.stage]) for made in found.stages
    ]
    for number, made in enumerate(found.stages):
        if made.stage == failed:
            found.stages[number] = replace(made, verdict=Outcome.FAIL, reason=None)
        elif made.stage in process.doubts and made.verdict is not Outcome.FAIL:
            reason = in_process(process.number, process.doubts[made.stage])
            found.stages[number] = replace(made, verdict=Outcome.INCONCLUSIVE, reason=reason)


def keep_failure(found: Findings, process: ProcessRows, wrong: Difference) -> Difference:
    """The row of a process's first failure."""
    row = replace(wrong, reason=in_process(process.number, wrong.reason or wrong.metric))
    before = next((known for known in found.rows if known.status.failed), None)
    if before is not None:
        return replace(row, status=RecordStatus.WARN, consequence_of=before.module)
    cause = process.cause(wrong)
    if cause is not None:
        found.causes[id(row)] = cause._replace(words=in_process(process.number, cause.words))
    return row


def left_out(
    found: Findings, left: Sequence[Mapping[str, Any]], judged: int, of: int
) -> Iterator[dict[str, Any]]:
    """What is not covered of the other processes and not of the first (`left`): each once."""
    known = {(item["what"], str(item["reason"])) for item in left}
    for number, item in found.elsewhere:
        key = item["what"], str(item["reason"])
        if key not in known:
            known.add(key)
            yield {**item, "reason": in_process(number, item["reason"])}
    if judged < of:
        reason = "nothing of them could be compared"
        yield {"what": "processes", "count": of - judged, "reason": reason}


def in_process(number: int, reason: Any) -> Text:
    """Words for what is so in one process."""
    return Text("in process {number}: {reason}", number=number, reason=reason)


def count_records(made: StageResult, compared: int, recorded: int) -> StageResult:
    """A stage with so many records more."""
    began = made.verdict is Outcome.SKIPPED and compared
    return replace(
        made,
        verdict=Outcome.PASS if began else made.verdict,
        reason=None if began else made.reason,
        compared=made.compared + compared,
        recorded=made.recorded + recorded,
    )
