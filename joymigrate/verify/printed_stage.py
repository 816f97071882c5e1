"""S5P: numbers that both programs print, as a last net below everything else. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank
from joymigrate.verify.judge import ErrorSeries, Judge, Key
from joymigrate.verify.model import Difference, Phase, RecordStatus
from joymigrate.verify.text_numbers import NumberColumn, Printed, columns, counterparts, distances
from joymigrate.verify.watch_record import RunRows
from joymigrate.verify.watch_stage import ALONE, CHOSEN, FARTHER, PARTED, UNTOLD, first_only

STAGE = "S5P"


@dataclass(slots=True)
class PrintedNumbers:
    """What was judged of the printed numbers, and what was not."""

    rows: list[Difference] = field(default_factory=list)
    compared: int = 0
    of: int = 0


def observe_prints(ours: Sequence[str], theirs: Sequence[str]) -> dict[Key, ErrorSeries]:
    """Every number that both sides printed, by the words around it."""
    mine, other = columns(ours), columns(theirs)
    return {
        one.key: distances(mine[one], other[there])
        for one, there in counterparts(mine, other).items()
    }


def judge_printed(ours: Rank, theirs: Rank, judge: Judge, watched: RunRows) -> PrintedNumbers:
    """Every number that the baseline printed, by the words around it."""
    made = PrintedNumbers()
    a, b = ours.json("printed.json"), theirs.json("printed.json")
    if not a or not b:
        return made
    if a["left_out"]:
        watched.leave_out("printed", a["left_out"], "more lines than are kept")
    mine, other = columns(a["lines"]), columns(b["lines"])
    made.of = sum(len(found) for found in mine.values())
    same, parted = counterparts(mine, other), math.isfinite(watched.end)
    left_out = 0
    for order, (column, numbers) in enumerate(mine.items()):
        there = other.get(same.get(column, column))
        if there is None or column.measures or (column.is_setting and parted):
            continue
        rows = list(rows_of(column, numbers, there, judge, watched, order))
        number = min(len(numbers), len(there))
        made.compared += number if rows else 0
        left_out += 0 if rows else number
        made.rows += rows
    missing = made.of - made.compared - left_out
    if missing:
        reason = "printed by one side only, or times, sizes and names of the machine"
        if parted:
            reason += ", or rates that follow a measured result"
        watched.leave_out("printed", missing, reason)
    watched.doubts += [row for row in made.rows if row.status is RecordStatus.WARN]
    made.rows = first_only(made.rows)
    return made


def rows_of(
    column: NumberColumn,
    ours: list[Printed],
    theirs: list[Printed],
    judge: Judge,
    watched: RunRows,
    order: int,
) -> Iterator[Difference]:
    """One column: PASS, FAIL, WARN where a choice may be why, or nothing where it can't be told."""
    series = distances(ours, theirs)
    decided = judge.decide(column.key, series)
    at = decided.at
    left = sum(place >= decided.untold and error > 0 for place, error in series.points)
    if left and at is None:
        watched.leave_out("printed", left, UNTOLD if judge.nulls else ALONE)
        return
    if at is not None and math.isfinite(watched.end):
        watched.leave_out("printed", len(series.points), PARTED)
        return
    status, reason = RecordStatus.PASS, None
    if at is not None:
        chosen = math.isfinite(watched.chosen)
        status = RecordStatus.WARN if chosen else RecordStatus.FAIL
        reason = Text(
            "'{line}': {have}, {want} in the baseline; {reason}",
            line=column.template[:120],
            have=f"{theirs[at].value:g}",
            want=f"{ours[at].value:g}",
            reason=Text(CHOSEN if chosen else FARTHER),
        )
    value = decided.value
    yield Difference(
        module="printed",
        call=at or 0,
        phase=Phase.OUTPUT.value,
        op=column.words.strip()[:40],
        metric="printed",
        value=value if value is not None and math.isfinite(value) else None,
        limit=decided.limit,
        status=status,
        stage=STAGE,
        reason=reason,
        order=order,
    )
