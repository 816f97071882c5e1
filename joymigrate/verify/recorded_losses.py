"""S6 in a replay: the losses of the recorded steps, judged as `verify loss` judges curves.

A few free steps are no curve: fewer than `LEAST` can warn, and fail only where one side alone is
not finite. What an earlier stage has failed explains the losses too, which then warn.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.verify import loss
from joymigrate.verify.bundle import Bundle
from joymigrate.verify.model import Difference, Outcome, StageResult, Status
from joymigrate.verify.tolerance import Tolerance

STAGE = loss.STAGE
LEAST = 10  # steps of a curve that can fail a run by its distance
WHOLE = "`joymigrate verify loss` judges whole curves"


def losses(bundle: Bundle) -> dict[int, dict[int, float]]:
    """What backward passes began with: number of the pass in its step → step → value.

    Of a divided batch every process holds its share of the mean, and the shares add up.
    """
    found: dict[int, dict[int, float]] = {}
    first, *others = bundle.ranks
    for step in first.steps:
        tables = [first.table(step), *(r.table(step) for r in others if step in r.steps)]
        for row, key in enumerate(tables[0].keys()):
            if key[0] != "loss:" or key[2] != "loss":
                continue
            value = float(tables[0].stats[row, 2])
            if tables[0].spread[row].startswith("partial"):
                parts = {tables[0].spread[row]}
                for table in tables[1:]:
                    at = table.place(key)
                    # With two kinds of parallelism at once several processes have the same share.
                    if at is None or (" " in table.spread[at] and table.spread[at] in parts):
                        continue
                    parts.add(table.spread[at])
                    value += float(table.stats[at, 2])
                if len(tables) < len(bundle.ranks):
                    continue  # a share is missing
            found.setdefault(key[1], {})[step] = value
    return found


def judge_curve(
    baseline: Bundle,
    target: Bundle,
    tolerance: Tolerance,
    *,
    explained: str | None,
    random: Collection[str],
    taught: bool,
) -> tuple[StageResult, list[Difference]]:
    """The stage and its rows. `explained` is the module that failed before, `random` the models
    that draw numbers, `taught` whether it is known which do."""
    ours, theirs = losses(baseline), losses(target)
    rows, most, recorded = [], 0, 0
    for number in sorted(ours):
        common = ours[number].keys() & theirs.get(number, {}).keys()
        recorded += len(ours[number])
        if len(common) < 2:
            continue
        most = max(most, len(common))
        excuse: str | None = None
        if len(common) < LEAST:
            excuse = Text(
                "{number} steps are too few to fail a run; {whole}", number=len(common), whole=WHOLE
            )
        elif random or not taught:
            excuse = "the runs may draw other random numbers"
        name = "loss" if not number else Text("loss of backward pass {number}", number=number + 1)
        a, b = ({s: values[number][s] for s in common} for values in (ours, theirs))
        rows.append(row_of(name, a, b, tolerance, explained, excuse))
    if not rows:
        reason = Text("fewer than two steps have a loss on both sides; {whole}", whole=WHOLE)
        return StageResult(STAGE, Outcome.SKIPPED, 0, recorded, reason=reason), []
    failed = [row for row in rows if row.status.failed]
    rows = [
        row if not failed or row is failed[0] else soften(row, failed[0].module) for row in rows
    ]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.status.value] = counts.get(row.status.value, 0) + 1
    compared = sum(len(ours[n].keys() & theirs.get(n, {}).keys()) for n in ours)
    short = most < LEAST
    said = Text("{number} steps: {reason}", number=most, reason=rows[0].reason or "")
    words = Text.join("; ", (said, WHOLE if short else ""))
    outcome = Outcome.FAIL if failed else Outcome.PASS
    # A few steps say nothing about a whole curve: the ledger keeps what `verify loss` found.
    details = {"short": short and not failed}
    return StageResult(STAGE, outcome, compared, recorded, counts, words, details=details), rows


def row_of(
    name: str,
    baseline: dict[int, float],
    target: dict[int, float],
    tolerance: Tolerance,
    explained: str | None,
    excuse: str | None,
) -> Difference:
    """One loss over the steps; WARN instead of FAIL where it is explained or excused."""
    a, b = ({float(s): v for s, v in side.items()} for side in (baseline, target))
    found = loss.one(name, a, b, (), tolerance, 1, False)
    row = loss.record(found, tolerance.limit(STAGE, "mean_relative_pass"))
    if found.first_outside is not None:
        row = replace(row, step=int(found.first_outside))
    if row.value is not None and math.isnan(row.value):
        row = replace(row, value=None)
    if explained is not None and row.status not in (Status.PASS, Status.IDENTICAL):
        return replace(row, status=Status.WARN, consequence_of=explained)
    if excuse is not None and row.status is Status.FAIL:
        return replace(row, status=Status.WARN, reason=Text.join("; ", (row.reason or "", excuse)))
    return row


def soften(row: Difference, culprit: str) -> Difference:
    """The row as what follows from another failure; what agrees stays."""
    if row.status in (Status.PASS, Status.IDENTICAL) or row.module == culprit:
        return row
    return replace(row, status=Status.WARN, consequence_of=culprit)
