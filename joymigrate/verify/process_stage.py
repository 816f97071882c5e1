"""Every process of a distributed program but the first, against the baseline's process of the same
number: data and weights (S1), modules (S3, S4), the rest of the step (S4R), the whole run (S5W).

Data-parallel processes hold whole weights, and each is taught alone. Where the sides have other
numbers of processes, modules alone are judged: the baseline's first process taught them all. No
torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.verify import identity, module_stage, rest_stage, watch_stage
from joymigrate.verify.bundle import Bundle, Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, stage
from joymigrate.verify.folding import in_other_mode, one_failure_per_fault, other_modes
from joymigrate.verify.model import Difference, Outcome, StageResult, Status
from joymigrate.verify.pairing import Pairing
from joymigrate.verify.tolerance import Tolerance


def judge_processes(
    baseline: Bundle, target: Bundle, tolerance: Tolerance, pairing: Pairing, found: Findings
) -> int:
    """Judge all processes but the first; returns how many of all were judged. Of each, the first
    failure is kept; what passes is counted in its stage."""
    judged = 1
    alike = len(baseline.ranks) == len(target.ranks)
    for theirs in target.ranks[1:]:
        same = (rank for rank in baseline.ranks if rank.number == theirs.number)
        ours = next(same, baseline.ranks[0])
        rows = list(rows_of(ours, theirs, alike, tolerance, pairing, found))
        judged += bool(rows)
        for name, count in Counter(row.stage for row in rows if row.status.compared).items():
            found.stages = [counted(s, name, count) for s in found.stages]
        wrong = next((row for row in rows if row.status.failed), None)
        if wrong is not None:
            add(found, wrong, theirs.number)
    return judged


def rows_of(
    ours: Rank,
    theirs: Rank,
    alike: bool,
    tolerance: Tolerance,
    pairing: Pairing,
    found: Findings,
) -> Iterator[Difference]:
    """All rows of one process, stage by stage."""
    replay = theirs.json("replay.json")
    roots = replay.get("roots", {})
    a, b = ours.program, theirs.program
    if alike:
        yield from identity.weights(a, b, pairing.names, replay.get("identity", {}))
        trains = bool(a.get("optimisers"))
        kinds = [side.get("environment", {}).get("devices") for side in (a, b)]
        yield from identity.batches(
            ours, theirs, pairing.names, trains=trains, devices=kinds[0] != kinds[1]
        )
        yield from identity.loader_batches(a, b)
    made = module_stage.judge_forced(ours.json("forced.json"), replay, a, b, tolerance)
    in_other_mode(made.rows, other_modes(ours, theirs, pairing), Display(a))
    judged = one_failure_per_fault(made.rows, set())
    judged.sort(key=lambda item: (item.difference.stage, item.difference.order))
    for item in judged:
        if item.cause is not None:
            found.causes[id(item.difference)] = item.cause
        yield item.difference
    if alike:
        yield from rest_stage.judge_rest(ours, theirs, True).rows
        yield from watch_stage.judge_run(ours, theirs, roots, True).rows


def add(found: Findings, wrong: Difference, number: int) -> None:
    """One process's first failure: a consequence where an earlier one is known."""
    reason = wrong.reason or wrong.metric
    row = replace(wrong, reason=Text("in process {number}: {reason}", number=number, reason=reason))
    before = next((known for known in found.rows if known.status.failed), None)
    if before is not None:
        row = replace(row, status=Status.WARN, consequence_of=before.module)
    elif (cause := found.causes.get(id(wrong))) is not None:
        words = Text("in process {number}: {reason}", number=number, reason=cause[1])
        found.causes[id(row)] = cause[0], words
    found.rows.append(row)
    known = {s.stage for s in found.stages}
    if row.stage not in known:
        found.stages.append(stage(row.stage, [row]))
    elif row.status.failed:
        found.stages = [
            replace(s, verdict=Outcome.FAIL, reason=None) if s.stage == row.stage else s
            for s in found.stages
        ]


def counted(made: StageResult, name: str, count: int) -> StageResult:
    """A stage with so many records more."""
    if made.stage != name:
        return made
    outcome = Outcome.PASS if made.verdict is Outcome.SKIPPED else made.verdict
    return replace(
        made, verdict=outcome, compared=made.compared + count, recorded=made.recorded + count
    )
