"""S5P: numbers that both programs print, as a last net below everything else. No torch.

A printed number fails a run when it leaves the baseline's at once, when one side alone is not
finite, when it differs from its first line on although the losses agree to the end, or, in a
program without losses, when all of its lines depart the same way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank
from joymigrate.verify.model import Difference, Phase, Status
from joymigrate.verify.rest_model import NOT_REPEATED, UNREPEATED
from joymigrate.verify.series_errors import LEAST_LOSS, sudden
from joymigrate.verify.text_numbers import ROUNDING, Column, Printed, columns, counterparts, errors
from joymigrate.verify.watch_record import Watched
from joymigrate.verify.watch_stage import believe_error, first_only

STAGE = "S5P"
# Our own choice: above what rounding does to a printed loss in runs that have not drifted.
LEAST = 0.05
# Counts of right answers move by single answers where rounding flips a choice, and so do results of
# an environment whose states follow from what a model computed; more so in 16 bits.
CHOSEN = {False: 0.3, True: 0.5}
# Losses that are this close: an argmax that rounding flips is rare. Our own choice.
CLOSE = 1e-4
# Lines that depart the same way: so many standard errors of their mean, and lines. Our own choice;
# clean programs without losses in 16 bits stay below 2 (benchmarks/verify_whole.py).
SURE, LINES = 8.0, 5
FEW = 4  # lines, where they are as far apart as no choice moves them
APART = "they differ; free runs that drift or choose otherwise print other numbers"


@dataclass(slots=True)
class PrintedNumbers:
    """What was judged of the printed numbers, and what was not."""

    rows: list[Difference] = field(default_factory=list)
    compared: int = 0
    of: int = 0


def judge_printed(ours: Rank, theirs: Rank, watched: Watched) -> PrintedNumbers:
    """Every number that the baseline printed, by the words around it."""
    made = PrintedNumbers()
    a, b = ours.json("printed.json"), theirs.json("printed.json")
    if not a or not b:
        return made
    if a["left_out"]:
        watched.leave_out("printed", a["left_out"], "more lines than are kept")
    mine, other = columns(a["lines"]), columns(b["lines"])
    made.of = sum(len(found) for found in mine.values())
    drifted, least = drift(watched), believe_error(watched, LEAST)
    same, parted = counterparts(mine, other), math.isfinite(watched.parted)
    unrepeated, left_out = ours.json(UNREPEATED).get("printed", []), 0
    for order, (column, numbers) in enumerate(mine.items()):
        there = other.get(same.get(column, column))
        if there is None or column.measures or (column.is_setting and parted):
            continue
        if [column.template, column.index] in unrepeated:
            watched.leave_out("printed", len(numbers), NOT_REPEATED)
            left_out += len(numbers)
            continue
        made.compared += min(len(numbers), len(there))
        made.rows += rows_of(column, numbers, there, watched, drifted, least, order)
    missing = made.of - made.compared - left_out
    if missing:
        reason = "printed by one side only, or times, sizes and names of the machine"
        if parted:
            reason += ", or rates that follow a measured result"
        watched.leave_out("printed", missing, reason)
    made.rows = first_only(made.rows)
    return made


def same_way(ours: list[Printed], theirs: list[Printed], least: float, lines: int) -> bool:
    """Whether all lines depart by much the same share: the mean of log(theirs / ours) over
    different lines is beyond `least`, and `SURE` times its standard error (Student's t)."""
    pairs = {(a.value, b.value) for a, b in zip(ours, theirs, strict=False)}
    if len(pairs) < lines or not all(a * b > 0 and math.isfinite(a * b) for a, b in pairs):
        return False
    shares = [math.log(b / a) for a, b in pairs]
    mean, spread = statistics.fmean(shares), statistics.stdev(shares)
    return abs(mean) > max(least, SURE * spread / math.sqrt(len(shares)))


def drift(watched: Watched) -> float:
    """The largest error of the free runs' losses; infinite where none was looked at."""
    known = [row.value for row in watched.rows if row.phase == "loss" and row.value is not None]
    if not known and watched.alike:
        return 0.0  # a program without losses whose models return the same to the end
    return max(known, default=math.inf)


def beside_others(ours: list[Printed], theirs: list[Printed], least: float) -> bool:
    """Whether a number without a name differs by more than a share of the greatest one in its line:
    one of a list may be nothing but rounding of the others."""
    pairs = zip(ours, theirs, strict=False)
    return any(a.floor and abs(a.value - b.value) * ROUNDING > least * a.floor for a, b in pairs)


def rows_of(
    column: Column,
    ours: list[Printed],
    theirs: list[Printed],
    watched: Watched,
    drifted: float,
    least: float,
    order: int,
) -> Iterator[Difference]:
    """One column: PASS, FAIL, or nothing where it can't be told."""
    found = errors(ours, theirs)
    worst = max(found)
    chooses = watched.chooses and not watched.same_choices
    settled = drifted < CLOSE and not chooses and not watched.fed_back
    moved = watched.fed_back or (chooses and (drifted or not watched.alike))
    jump = CHOSEN[watched.short] if moved else least
    at = next((n for n, e in enumerate(found) if math.isinf(e)), None)
    reason: str = "one side alone is not finite"
    if at is None:
        at = sudden(list(enumerate(found)), jump) if not all(p.whole for p in ours) else None
        reason = "it leaves the baseline's at once, after lines that agree"
    if at is None and worst > least:
        often = len(found) > 1 and drifted < CLOSE and not watched.fed_back
        differs = statistics.median(found) > (least if often else jump)
        whole = all(p.whole for p in ours)
        known = not math.isinf(drifted)  # rounding may have moved results as far as the losses
        how = (CHOSEN[watched.short], FEW) if known else (least, LINES)
        if not whole and same_way(ours, theirs, *how):
            at, reason = 0, "all lines depart the same way, which rounding and choices do not"
        elif (
            differs
            and not watched.noisy
            and (column.named or not drifted or (settled and beside_others(ours, theirs, least)))
            and drifted < LEAST_LOSS
            and not (whole and chooses)
        ):
            at, reason = 0, "it differs, although the losses agree to the end"
        else:
            watched.leave_out("printed", len(found), APART)
            return
    evidence = None
    if at is not None:
        evidence = Text(
            "'{line}': {have}, {want} in the baseline; {reason}",
            line=column.template[:120],
            have=f"{theirs[at].value:g}",
            want=f"{ours[at].value:g}",
            reason=Text(reason),
        )
    yield Difference(
        module="printed",
        call=at or 0,
        phase=Phase.OUTPUT.value,
        op=column.words.strip()[:40],
        metric="printed",
        value=worst if math.isfinite(worst) else None,
        limit=least,
        status=Status.PASS if at is None else Status.FAIL,
        stage=STAGE,
        reason=evidence,
        order=order,
    )
