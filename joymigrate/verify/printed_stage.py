"""S5P: numbers that both programs print, as a last net below everything else. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank
from joymigrate.verify.findings import Findings, by_step, keep_first
from joymigrate.verify.judge import ErrorSeries, Judge, Key
from joymigrate.verify.model import Difference, Phase, RecordStatus
from joymigrate.verify.text_numbers import NumberColumn, Printed, columns, counterparts, distances
from joymigrate.verify.watch_stage import CHOSEN, ENDED, FARTHER, PARTED, UNTOLD, is_untold, tell

STAGE, PRINTED = "S5P", "printed"


def observe_prints(ours: Sequence[str], theirs: Sequence[str]) -> dict[Key, ErrorSeries]:
    """Every number that both sides printed, by the words around it."""
    mine, other = columns(ours), columns(theirs)
    return {
        one.key: distances(mine[one], other[there])
        for one, there in counterparts(mine, other).items()
    }


def judge_printed(ours: Rank, theirs: Rank, judge: Judge, found: Findings) -> list[Difference]:
    """Every number that the baseline printed, by the words around it."""
    a, b = ours.json("printed.json"), theirs.json("printed.json")
    if not a or not b:
        return []
    if a["left_out"]:
        found.leave_out(PRINTED, a["left_out"], "more lines than are kept")
    mine, other = columns(a["lines"]), columns(b["lines"])
    found.recorded[PRINTED] = sum(map(len, mine.values()))
    same, parted = counterparts(mine, other), math.isfinite(found.end)
    missing, made = found.recorded[PRINTED], []
    for order, (column, numbers) in enumerate(mine.items()):
        there = other.get(same.get(column, column))
        if there is None or column.measures or (column.is_setting and parted):
            continue
        series = tell_part(column.key, distances(numbers, there), judge, found)
        row = row_of(column, series, numbers, there, judge, found, order)
        missing -= min(len(numbers), len(there))
        if row is not None:
            found.compared[PRINTED] += len(series.points)
            made.append(row)
    if missing:
        reason = "printed by one side only, or times, sizes and names of the machine"
        if parted:
            reason += ", or rates that follow a measured result"
        found.leave_out(PRINTED, missing, reason)
    found.doubts += [row for row in made if row.status is RecordStatus.WARN]
    return keep_first(made, by_step)


def row_of(
    column: NumberColumn,
    series: ErrorSeries,
    ours: list[Printed],
    theirs: list[Printed],
    judge: Judge,
    found: Findings,
    order: int,
) -> Difference | None:
    """One column, by the errors of its numbers; None where it can't be told."""
    decided = judge.decide(column.key, series)
    if is_untold(judge, found, series, decided, PRINTED):
        return None
    at, reason, chosen = decided.at, None, found.may_choose
    flipped = found.flips and series.exact  # words that are sampled, counts of what is chosen
    if at is not None and (flipped or math.isfinite(found.end)):
        found.leave_out(PRINTED, len(series.points), UNTOLD if flipped else PARTED)
        return None
    if at is not None:
        reason = Text(
            "'{line}': {have}, {want} in the baseline; {reason}",
            line=column.template[:120],
            have=f"{theirs[at].value:g}",
            want=f"{ours[at].value:g}",
            reason=Text(CHOSEN if chosen else FARTHER),
        )
    blank = Difference(
        module=PRINTED,
        call=at or 0,
        phase=Phase.OUTPUT.value,
        op=column.words.strip()[:40],
        metric=PRINTED,
        status=RecordStatus.PASS,
        stage=STAGE,
        order=order,
    )
    return tell(blank, decided, reason, chosen)


def tell_part(key: Key, series: ErrorSeries, judge: Judge, found: Findings) -> ErrorSeries:
    """The numbers of a column that the baseline's other runs printed, too, where they were ended
    before the program's own end. Whole numbers are no exception: rounding moves a count of hits."""
    if not math.isfinite(judge.end):
        return series
    known = min((len(null[key].points) for null in judge.nulls if key in null), default=0)
    told = series.told_before(known)
    if len(told.points) < len(series.points):
        found.leave_out(PRINTED, len(series.points) - len(told.points), ENDED)
    return told
