"""S5W: every step of the whole run by a few numbers: random states, data, shapes of calls, losses,
weights, results. No torch.

Free runs depart by rounding. How far is told by the baseline's own other runs; what is farther was
done otherwise, or was chosen otherwise: where a program chooses by what its models compute, a
departure is a doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify import crash
from joymigrate.verify.bundle import Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, by_step, keep_first
from joymigrate.verify.identity import GIVEN
from joymigrate.verify.judge import UNSEEN, ErrorSeries, Judge, Key, SeriesDecision
from joymigrate.verify.model import Difference, Phase, RecordStatus
from joymigrate.verify.series import find_restarted, observe_run, random_words, rename_series
from joymigrate.verify.watch_ranks import drawing, draws_alike, whole_steps

STAGE = "S5W"
UNTOLD = "the baseline's own runs depart here, or would if they rounded as the target does"
ENDED = "the baseline's other runs were ended before: the program is long"
ALONE = "the baseline was run once: how far rounding moves it is not known"
UNSEEDED = "it changes, and does not begin as the baseline's does: no seed, or another"
PARTED = "the sides do not compute the same from here on"
FARTHER = "farther from the baseline's than the baseline's own runs are from one another"
CHOSEN = "the program chooses by what its models compute, which rounding may flip"

RANKS = ("topk", "sort", "argsort", "argmax", "argmin", "round", "sign")


@dataclass(frozen=True, slots=True)
class SeriesKind:
    """How series of one kind are told: phase, order among those of one step, words."""

    phase: Phase
    order: int
    op: str  # with the leaf of the series
    reason: str = FARTHER


KINDS: Mapping[str, SeriesKind] = {
    "seed": SeriesKind(Phase.STATE, 0, "seed", "its seed is another one"),
    "random": SeriesKind(
        Phase.STATE, 0, "random state", "other random numbers are drawn from here on"
    ),
    "batch": SeriesKind(Phase.INPUT, 1, "", "the data differ from here on"),
    "shapes": SeriesKind(Phase.INPUT, 2, "shapes"),
    "input": SeriesKind(
        Phase.INPUT, 3, "input {leaf}", "other values are given to the model from here on"
    ),
    "held": SeriesKind(
        Phase.STATE,
        4,
        "{leaf} at a call in a new way",
        "other values: another state is loaded, copied or averaged, or it is changed by hand",
    ),
    "result": SeriesKind(Phase.FORWARD, 5, "result {leaf}"),
    "loss": SeriesKind(Phase.LOSS, 5, "loss {leaf}"),
    "plateau": SeriesKind(Phase.OUTPUT, 5, "result that scheduler {leaf} follows"),
    "weight": SeriesKind(
        Phase.STATE, 6, "norm of {leaf}", "it is changed by hand in this step, to other values"
    ),
    "update": SeriesKind(Phase.OPTIMISER, 7, "size of the update of {leaf}"),
    "growth": SeriesKind(Phase.OPTIMISER, 8, "growth of {leaf}"),
}


def judge_run(
    ours: Rank,
    theirs: Rank,
    roots: Mapping[str, str],
    alike: bool,
    judge: Judge,
    found: Findings,
) -> list[Difference]:
    """All series of both sides. `roots` are the baseline's names of the target's models; from the
    step `found.end` on the sides do not train at the same rate any more."""
    a, b = ours.json("watch.json"), theirs.json("watch.json")
    if not a or not b:
        found.leave_out("run", 0, "one side was recorded by an older joymigrate")
        return []
    found.recorded["run"] = int(min(a["steps"], judge.end))  # what could be compared
    if not alike:
        found.leave_out("run", a["steps"], "the sides have other numbers of processes")
        return []
    steps = min(a["steps"], b["steps"])
    broken = [int(place["step"]) for place in map(crash.of, ([ours], [theirs])) if place]
    if broken:
        # What a step did before it broke off is not its whole work.
        a, b = (whole_steps(side, min(broken)) for side in (a, b))
        steps = min([steps, *broken])
    if judge.end < steps:
        found.leave_out("run", steps - int(judge.end), ENDED)
    found.compared["run"] = int(min(steps, judge.end))
    run = RunJudge(a, b, roots, Display(ours.program), judge, found, steps)
    run.same_draws = draws_alike(ours, theirs)
    run.chooses_inside = chooses_inside(ours)
    if not run.same_draws and drawing(theirs):
        found.end = 0
        found.leave_out("run", steps, "its models draw other random numbers on this device")
    rows = list(run.rows())
    found.doubts += [row for row in rows if row.reason == CHOSEN]
    return keep_first(rows, by_step)


def is_untold(
    judge: Judge, found: Findings, series: ErrorSeries, decided: SeriesDecision, what: Any
) -> bool:
    """Whether nothing can be told of a series; what can't is left out under its name."""
    if not series.points:
        return True
    beyond = [error for at, error in series.points if at >= decided.untold]
    if not any(beyond):
        return False
    unseen = math.isfinite(judge.end) and decided.limit is None and not series.exact
    why = ENDED if unseen else UNTOLD
    found.leave_out(what, len(beyond), why if judge.nulls else ALONE)
    return decided.at is None


def tell(blank: Difference, decided: SeriesDecision, reason: Any, chosen: bool) -> Difference:
    """A series as a row: PASS, FAIL where it departs, WARN where a choice may be why. `blank` says
    where it belongs."""
    made = replace(blank, value=decided.value, limit=decided.limit)
    if decided.at is None:
        return made
    status = RecordStatus.WARN if chosen else RecordStatus.FAIL
    return replace(made, status=status, reason=reason)


class RunJudge:
    """The series of two runs."""

    def __init__(
        self,
        ours: Mapping[str, Any],
        theirs: Mapping[str, Any],
        roots: Mapping[str, str],
        view: Display,
        judge: Judge,
        found: Findings,
        steps: int,
    ) -> None:
        self.ours, self.theirs, self.roots = ours, theirs, roots
        self.view, self.judge, self.found = view, judge, found
        self.series = observe_run(ours, theirs, roots)
        self.steps = steps
        self.same_draws = True
        self.chooses_inside = False

    def rows(self) -> Iterator[Difference]:
        """One row for each series."""
        self.missing()
        self.found.chosen = self.chosen_at()
        order = sorted(self.series.items(), key=lambda item: ORDER.get(item[0][0], 99))
        for key, series in order:
            if key[0] in KINDS:
                yield from self.row_of(key, series)

    def missing(self) -> None:
        """What only one side has."""
        theirs = self.theirs["series"]
        there = {rename_series(name, self.roots): items for name, items in theirs.items()}
        for name, items in self.ours["series"].items():
            kind, _, rest = name.partition(" ")
            other = there.get(name)
            if other is not None and kind == "batch" and len(items) != len(other):
                less = abs(len(items) - len(other))
                self.found.leave_out(rest, less, "one side has more batches")
            if other is not None and kind == "seed":
                often = [sum(item[0] < self.steps for item in one) for one in (items, other)]
                if often[0] != often[1]:
                    why = "one side gives it another seed more often"
                    self.found.leave_out(random_words(rest), 1, why)
            if name not in there and kind in ("seed", "batch"):
                words = rest if kind == "batch" else random_words(rest)
                self.found.leave_out(words, len(items), "only the baseline has it")
        for rest in find_restarted(self.ours["series"], there):
            self.found.leave_out(random_words(rest), 1, UNSEEDED)

    def chosen_at(self) -> float:
        """The first step in which the program may have chosen otherwise: it did, or chose in a step
        that is not looked at, where the baseline's own runs chose alike."""
        choice = self.series.get(("choice", ""))
        if choice is None:
            return math.inf
        known = self.judge.decide(("choice", ""), choice)
        if known.untold < math.inf:  # they choose otherwise, too: their distances show it
            self.found.flips = True
            return math.inf
        blind = any(side.get("blind", True) for side in (self.ours, self.theirs))
        first = min((at for at, _ in choice.points), default=math.inf) if blind else math.inf
        return min(first, math.inf if known.at is None else known.at)

    def row_of(self, key: Key, series: ErrorSeries) -> Iterator[Difference]:
        """The row of one series, where it can be told."""
        kind, name = key
        series = self.cut(kind, name, series)
        decided = self.judge.decide(key, series)
        if is_untold(self.judge, self.found, series, decided, self.words(kind, name)):
            return
        if kind == "input" and decided.at is not None:
            self.fed_back(decided.at)
        yield self.row(kind, name, decided)

    def fed_back(self, step: int) -> None:
        """Inputs depart in a program that takes tensors of its models out of torch, or draws its
        inputs on another device: what follows may follow from that."""
        takes = any(side.get("takes", False) for side in (self.ours, self.theirs))
        if takes:
            self.found.chosen = min(self.found.chosen, step)
        if not self.same_draws:
            self.found.end = min(self.found.end, step)

    def cut(self, kind: str, name: str, series: ErrorSeries) -> ErrorSeries:
        """The part of a series in which both sides are to do the same."""
        if kind == "random" and (not self.same_draws or self.theirs.get("given")):
            why = (
                GIVEN if self.same_draws else "it changes; on other devices programs draw elsewhere"
            )
            self.found.leave_out(random_words(name), 1, why)
            return replace(series, points=())
        given = self.theirs.get("given", {}).get(name, ()) if kind == "batch" else ()
        if given:
            self.found.leave_out(name, len(given), GIVEN)
        end = math.inf if kind in ("seed", "batch") else self.found.end
        points = [p for p in series.points if p[0] < end and p[0] not in given]
        if kind in ("update", "growth"):  # S5 judges the same by all of its elements
            points = [p for p in points if p[0] not in self.found.updates]
        parted = sum(p[0] >= end for p in series.points)
        if parted and self.same_draws:
            self.found.leave_out(self.words(kind, name), parted, PARTED)
        made = replace(series, points=points)
        return made if series.exact else made.told_before(self.judge.end)

    def words(self, kind: str, name: str) -> Any:
        """What a user calls a series."""
        module, op = self.place(kind, name)
        return Text.join(", ", (op, module)) if op else module

    def place(self, kind: str, name: str) -> tuple[str, Any]:
        """(module, what of it)."""
        seen = KINDS[kind]
        if kind in ("seed", "random"):
            return random_words(name), seen.op
        if kind == "batch":
            return "data", name
        if kind in ("loss", "plateau"):
            module = "loss" if kind == "loss" else "scheduler"
            return module, Text(seen.op, leaf=name)
        if kind in ("input", "result"):
            where, leaf, _ = name.rsplit(" ", 2)
            return self.view(where), Text(seen.op, leaf=leaf)
        if kind == "shapes":
            return self.view(name), seen.op
        root, _, path = name.partition(":")
        owner, _, leaf = path.rpartition(".")
        return self.view(f"{root}:{owner}"), Text(seen.op, leaf=leaf)

    def row(self, kind: str, name: str, decided: SeriesDecision) -> Difference:
        """A series: PASS, FAIL from a step on, or WARN where a choice may be why."""
        seen, at = KINDS[kind], decided.at
        module, op = self.place(kind, name)
        by_hand = kind in ("update", "growth") and at is not None and self.by_hand_in(name, at)
        blank = Difference(
            module=module,
            phase=(Phase.STATE if by_hand else seen.phase).value,
            op=op,
            metric="whole run",
            status=RecordStatus.PASS,
            stage=STAGE,
            step=at,
            order=seen.order,
        )
        if at is None:
            return tell(blank, decided, None, False)
        chosen = at >= self.found.chosen and kind not in ("seed", "random", "batch")
        chosen |= kind in ("update", "growth") and self.may_flip(decided)
        return tell(blank, decided, CHOSEN if chosen else self.reason(kind, name, at), chosen)

    def may_flip(self, decided: SeriesDecision) -> bool:
        """Whether a choice inside of a model that rounding flips may move a weight so far."""
        wide = self.judge.factor(UNSEEN) / self.judge.factor(("update", ""))
        limit = wide * (decided.limit or 0.0)
        return self.chooses_inside and decided.value is not None and decided.value <= limit

    def reason(self, kind: str, name: str, at: int) -> Any:
        """Words for a departure."""
        if kind != "shapes":
            return KINDS[kind].reason
        theirs = {rename_series(k, self.roots): v for k, v in self.theirs["series"].items()}
        sides = (
            (self.theirs, theirs[f"shapes {name}"]),
            (self.ours, self.ours["series"][f"shapes {name}"]),
        )
        pairs = zip(sides[0][1], sides[1][1], strict=False)
        have, want = next((x[1], y[1]) for x, y in pairs if x[1] != y[1])
        return Text(
            "called with {have}, with {want} in the baseline",
            have=self.theirs["shapes"].get(have, "other shapes"),
            want=self.ours["shapes"].get(want, "other shapes"),
        )

    def by_hand_in(self, name: str, step: int) -> bool:
        """Whether a weight was written after its optimiser's update in this step, and in few
        others: a change by hand."""
        sides: list[Sequence[Any]] = [
            side["series"].get(f"hand {name}", ()) for side in (self.ours, self.theirs)
        ]
        steps = [{int(item[0]) for item in side} for side in sides]
        return any(step in side and len(side) <= self.steps / 2 for side in steps)


def chooses_inside(rank: Rank) -> bool:
    """Whether the models' own code ranks or rounds what it computes: a choice of experts that
    rounding flips moves some of their weights otherwise."""
    calls = rank.json("forced.json").get("lessons", [])
    traces = (trace for call in calls for trace in call.get("trace", {}).values())
    return any(str(name).strip("_") in RANKS for trace in traces for name, *_ in trace)


ORDER = {kind: seen.order for kind, seen in KINDS.items()}
