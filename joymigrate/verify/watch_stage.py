"""S5W: every step of the whole run by a few numbers: random states, data, shapes of calls, losses,
sizes of updates. No torch.

Free runs depart by rounding, which grows little from one step to the next. What departs at once was
done otherwise: losses and updates are judged by how suddenly they leave the baseline.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify import crash
from joymigrate.verify.bundle import Rank
from joymigrate.verify.display import Display
from joymigrate.verify.growth import Growth
from joymigrate.verify.identity import GIVEN
from joymigrate.verify.late_inputs import late_input
from joymigrate.verify.model import Difference, Phase, Status
from joymigrate.verify.plateaus import SERIES
from joymigrate.verify.rest_model import NOT_REPEATED, UNREPEATED
from joymigrate.verify.run_results import ResultSeries
from joymigrate.verify.series_errors import (
    CARRIED,
    LEAST_LOSS,
    LEAST_STEPS,
    START,
    SUDDEN,
    first_other_input,
    first_unequal_state,
    growth_errors,
    input_error,
    log_ratio,
    pair_steps,
    random_words,
    rename_series,
    sudden,
    usual_size,
    value_error,
)
from joymigrate.verify.watch_ranks import (
    SUDDEN_GROWTH,
    choosing,
    computes_short,
    drawing,
    weights_of_noise,
    whole_steps,
)
from joymigrate.verify.watch_record import Watched

STAGE = "S5W"
# How much a step changes a weight's norm, by how far the weight moves. In clean runs in float32 it
# is 0 but for gradients whose terms cancel, in 16 bits up to 0.23.
LEAST_GROWTH = {False: 0.1, True: 0.4}
# A weight's norm after a change by hand, relative: a unit of each.
LEAST_WEIGHT = {False: 2.0**-10, True: 2.0**-7}
LEAST_UPDATE = 0.12  # |log of the ratio of two sizes|
LEAST_ONE_UPDATE = 0.7  # of a single weight
LEAST_CHOSEN = 0.3  # relative: shares of right answers, which move by single answers
CHOSEN_SEED = 2**31  # people write smaller ones; larger ones come from the clock or the machine


def judge_run(
    ours: Rank,
    theirs: Rank,
    roots: Mapping[str, str],
    alike: bool,
    parted: float = math.inf,
) -> Watched:
    """All series of both sides. `roots` are the baseline's names of the target's models; from the
    step `parted` on the sides do not train at the same rate any more."""
    a, b = ours.json("watch.json"), theirs.json("watch.json")
    found = Watched()
    if not a or not b:
        found.leave_out("run", 0, "one side was recorded by an older joymigrate")
        return found
    found.of = a["steps"]
    if not alike:
        found.leave_out("run", a["steps"], "the sides have other numbers of processes")
        return found
    found.steps = min(a["steps"], b["steps"])
    broken = [int(place["step"]) for place in map(crash.of, ([ours], [theirs])) if place]
    if broken:
        # What a step did before it broke off is not its whole work.
        last = min(broken)
        a, b = whole_steps(a, last), whole_steps(b, last)
        found.steps = min(found.steps, last)
    found.chooses = a["chooses"] or b["chooses"]
    told = [side["series"].get("choice") for side in (a, b)]
    seen = not any(side.get("blind", True) for side in (a, b))
    found.same_choices = seen and told[0] is not None and told[0] == told[1]
    found.takes = a.get("takes", False) or b.get("takes", False)
    environments = [rank.program.get("environment", {}) for rank in (ours, theirs)]
    devices = environments[0].get("devices") == environments[1].get("devices")
    judge = RunJudge(a, b, roots, Display(ours.program), devices, found)
    judge.parted, found.parted = parted, parted
    judge.short = found.short = any(map(computes_short, (ours, theirs)))
    judge.choosing = choosing(ours)
    judge.drawing = drawing(theirs)
    judge.unrepeated = frozenset(ours.json(UNREPEATED).get("inputs", ()))
    judge.noise = weights_of_noise(ours, theirs, roots)
    found.rows = first_only(list(judge.rows()))
    found.fed_back = math.isfinite(judge.end_of_same_data())
    return found


def believe_error(watched: Watched, most: float) -> float:
    """The relative error of a result that rounding may have made: by how far the losses of the
    free runs are apart, and `most` where they are far or unknown."""
    known = [row.value for row in watched.rows if row.phase == "loss" and row.value is not None]
    return max(START, min(most, CARRIED * max(known, default=math.inf)))


def first_only(rows: list[Difference]) -> list[Difference]:
    """The first failure stays; what departs after it follows from it."""
    failed = [row for row in rows if row.status.failed]
    if not failed:
        return rows
    first = min(failed, key=lambda row: (row.step or 0, row.order))
    return [
        replace(row, status=Status.WARN, consequence_of=first.module)
        if row is not first and row.status.failed
        else row
        for row in rows
    ]


class RunJudge:
    """The series of two runs."""

    def __init__(
        self,
        ours: Mapping[str, Any],
        theirs: Mapping[str, Any],
        roots: Mapping[str, str],
        view: Display,
        devices: bool,
        found: Watched,
    ) -> None:
        self.parted = math.inf  # step from which the sides train at other rates
        self.short = False  # anything computes in 16 bits or fewer
        self.unrepeated: frozenset[str] = frozenset()  # inputs, in two runs of the baseline
        self.noise: set[str] = set()  # weights whose gradients are rounding
        self.drawing: set[str] = set()  # models that draw random numbers
        self.choosing: set[str] = set()  # models that choose by values
        self.a = ours["series"]
        self.b = {rename_series(name, roots): items for name, items in theirs["series"].items()}
        self.ours, self.theirs, self.roots = ours, theirs, roots
        self.own = set(ours["own"]) & {rename_series(name, roots) for name in theirs["own"]}
        self.view, self.devices, self.found = view, devices, found

    def rows(self) -> Iterator[Difference]:
        """One row for each series."""
        yield from self.seeds()
        yield from self.random()
        yield from self.batches()
        yield from self.shapes()
        yield from self.inputs()
        yield from ResultSeries(self).rows()
        yield from self.losses()
        yield from self.measured()
        yield from self.updates()
        yield from self.by_hand()

    def named(self, kind: str) -> Iterator[tuple[str, list[Any], list[Any] | None]]:
        """(name, ours, theirs) of the series of one kind."""
        for name, items in self.a.items():
            if name.startswith(kind + " "):
                yield name.removeprefix(kind + " "), items, self.b.get(name)

    def seeds(self) -> Iterator[Difference]:
        """Seeds of the generators that a program hands to its draws."""
        for name, ours, theirs in self.named("seed"):
            words = random_words(name)
            pairs = list(zip(ours, theirs or (), strict=False))
            wrong = next(((x, y) for x, y in pairs if x[1] != y[1]), None)
            often = [sum(at < self.found.steps for at, _ in side) for side in (ours, theirs or ())]
            if theirs and wrong is None and often[0] != often[1]:
                self.found.leave_out(words, 1, "one side gives it another seed more often")
            if theirs is None or (wrong and max(wrong[0][1], wrong[1][1]) >= CHOSEN_SEED):
                self.found.leave_out(words, 1, "no seed, or only the baseline draws from it")
                continue
            reason = None
            if wrong is not None:
                reason = Text("its seed is {mine}, {want} in the baseline",
                              mine=wrong[1][1], want=wrong[0][1])  # fmt: skip
            step = int(wrong[0][0]) if wrong is not None else None
            yield self.row(words, "seed", Phase.STATE, step, reason, 0)

    def random(self) -> Iterator[Difference]:
        """States of random generators as steps end."""
        for name, ours, theirs in self.named("random"):
            if len({state for _, state in ours}) < 2 and len({s for _, s in theirs or ()}) < 2:
                continue  # nobody draws from it
            words = random_words(name)
            if theirs is None or ours[0] != theirs[0]:
                reason = (
                    "it changes, and does not begin as the baseline's does: no seed, or another"
                )
                self.found.leave_out(words, 1, reason)
            elif self.theirs.get("given"):
                self.found.leave_out(words, 1, GIVEN)
            elif not self.devices:
                reason = "it changes; on other devices programs draw elsewhere"
                self.found.leave_out(words, 1, reason)
            else:
                step = first_unequal_state(ours, theirs, self.found.steps)
                reason = "other random numbers are drawn from here on"
                yield self.row(words, "random state", Phase.STATE, step, reason, 0)
        for name in self.b:
            if name.startswith("random ") and name not in self.a:
                self.found.leave_out(random_words(name[7:]), 1, "only the target has it")

    def batches(self) -> Iterator[Difference]:
        """What loaders handed out, to the end."""
        for name, ours, theirs in self.named("batch"):
            if theirs is None:
                self.found.leave_out(name, len(ours), "the target has no such loader")
                continue
            if given := self.theirs.get("given", {}).get(name, ()):
                self.found.leave_out(name, len(given), GIVEN)
            pairs = zip(ours, theirs, strict=False)
            wrong = next((x[0] for x, y in pairs if x[1] != y[1] and y[0] not in given), None)
            reason = Text("the data differ from batch {number} on", number=wrong)
            yield self.row("data", name, Phase.INPUT, wrong, reason, 1)
            if wrong is None and len(ours) != len(theirs):
                less = abs(len(ours) - len(theirs))
                self.found.leave_out(name, less, "one side has more batches")

    def shapes(self) -> Iterator[Difference]:
        """Shapes of what models are called with."""
        for place, ours, theirs in self.named("shapes"):
            pairs = zip(ours, theirs or (), strict=False)
            wrong = next(((x, y) for x, y in pairs if x[1] != y[1]), None)
            step = wrong[0][0] if wrong else None
            reason: Any = None
            chosen = self.chosen_at(place) if self.found.chooses else None
            if step is not None and chosen is not None and chosen <= step:
                why = "the program chose otherwise by its models' results"
                self.found.leave_out(f"calls of {self.view(place)}", 1, why)
                continue
            if wrong is not None:
                reason = Text(
                    "called with {have}, with {want} in the baseline",
                    have=self.theirs["shapes"].get(wrong[1][1], "other shapes"),
                    want=self.ours["shapes"].get(wrong[0][1], "other shapes"),
                )
            yield self.row(self.view(place), "shapes", Phase.INPUT, step, reason, 2)

    def inputs(self) -> Iterator[Difference]:
        """Inputs that come from outside, by two numbers."""
        for name, ours, theirs in self.named("input"):
            if f"input {name}" not in self.own or theirs is None:
                row = late_input(self, name, ours, theirs) if theirs else None
                if row is not None:
                    yield row
                continue
            place, leaf, _ = name.rsplit(" ", 2)
            if f"input {name}" in self.unrepeated:
                self.found.leave_out(f"inputs of {self.view(place)}", 1, NOT_REPEATED)
                continue
            wrong = first_other_input(ours, theirs)
            chooses = self.found.chooses and not self.unchosen(name, wrong)
            if wrong is not None and (chooses or not self.devices or self.grows(name, wrong)):
                why = "they depart; the program chooses by its models' results, or draws elsewhere"
                self.found.leave_out(f"inputs of {self.view(place)}", 1, why)
                continue
            reason = "other values are given to the model from here on"
            yield self.row(self.view(place), f"input {leaf}", Phase.INPUT, wrong, reason, 3)

    def unchosen(self, name: str, step: int | None) -> bool:
        """Whether an input was given in a step before either program has chosen anything by its
        models' results."""
        known = [side.get("unchosen", {}) for side in (self.ours, self.theirs)]
        known[1] = {rename_series(one, self.roots): last for one, last in known[1].items()}
        last = min(side.get(f"input {name}", -1) for side in known)
        return step is not None and step <= last

    def grows(self, name: str, step: int) -> bool:
        """Whether data depart by rounding first, and an input no farther than that can grow, in a
        program that takes what its models compute out of torch."""
        if not self.found.takes:
            return False
        worst: dict[int, float] = {}
        for one, ours, theirs in self.named("input"):
            if f"input {one}" not in self.own:
                continue
            for mine, other in pair_steps(ours, theirs or ()):
                if mine[0] < step and isinstance(mine[-1], float):
                    worst[mine[0]] = max(worst.get(mine[0], 0.0), input_error(mine, other))
        growth = Growth()
        for before, error in sorted(worst.items()):
            growth.explains(before, error)
        pairs = pair_steps(self.a[f"input {name}"], self.b.get(f"input {name}", ()))
        own = max((input_error(x, y) for x, y in pairs if x[0] == step), default=math.inf)
        return growth.explains(step, own)

    @functools.cache  # noqa: B019 - a judge lives as long as one comparison
    def end_of_same_data(self) -> float:
        """The first step in which rounding that came back as data, or as another rate, is more
        than rounding."""
        found = [self.parted]
        for name, ours, theirs in self.named("input"):
            first = first_other_input(ours, theirs or ())
            if first is not None and f"input {name}" in self.own and self.grows(name, first):
                found.append(first)
        return min(found)

    def chosen_at(self, place: str) -> int | None:
        """The first step in which a model is given other whole numbers; None for none."""
        found = []
        for name, ours, theirs in self.named("input"):
            if name.rsplit(" ", 2)[0] != place or theirs is None:
                continue
            pairs = pair_steps(ours, theirs)
            whole = [(x, y) for x, y in pairs if all(isinstance(v, int) for v in x[1:])]
            found += [x[0] for x, y in whole if x[1:] != y[1:]][:1]
        return min(found, default=None)

    def loss_error(self, until: int) -> float:
        """The largest error of losses up to a step; infinite where fewer than two are known."""
        found: dict[int, float] = {}
        for _, ours, theirs in self.named("loss"):
            there = dict(map(tuple, theirs or ()))
            scale = usual_size(a for _, a in ours)
            for step, a in ours:
                if step in there and step <= until:
                    error = value_error(a, there[step], scale)
                    found[step] = max(found.get(step, 0.0), error)
        return max(found.values()) if len(found) >= LEAST_STEPS else math.inf

    def losses(self) -> Iterator[Difference]:
        """Losses that leave the baseline's at once."""
        for name, ours, theirs in self.named("loss"):
            there = dict(map(tuple, theirs or ()))
            known = [(step, a, there[step]) for step, a in ours if step in there]
            scale = usual_size(a for _, a, _ in known)
            errors = [(s, value_error(a, b, scale)) for s, a, b in known]
            yield self.judged("loss", f"loss {name}", errors, LEAST_LOSS, Phase.LOSS, 4)

    def measured(self) -> Iterator[Difference]:
        """Results that a scheduler is stepped with."""
        for name, ours, theirs in self.named(SERIES):
            usual = usual_size(item[3] for item in ours)
            op = Text("result that scheduler {name} follows", name=name)
            errors = [
                (int(x[0]), value_error(x[3], y[3], usual))
                for x, y in pair_steps(ours, theirs or ())
            ]
            row = self.judged("scheduler", op, errors, LEAST_LOSS, Phase.OUTPUT, 4)
            least = LEAST_CHOSEN if self.found.chooses else LEAST_LOSS
            for step, error in errors:
                most = max(least, CARRIED * self.loss_error(step))
                if row.status is Status.FAIL or step > self.end_of_same_data() or error <= most:
                    continue
                reason = "it is another result, where the losses agree far better"
                row = self.row("scheduler", op, Phase.OUTPUT, step, reason, 4, error, most)
            yield row

    def updates(self) -> Iterator[Difference]:
        """Sizes of updates that leave the baseline's at once, in most of the looked-at weights."""
        for root in sorted({name.partition(":")[0] for name, _, _ in self.named("update")}):
            by_step: dict[int, list[float]] = {}
            for name, ours, theirs in self.named("update"):
                if name.partition(":")[0] != root:
                    continue
                there = {item[0]: item[1:] for item in theirs or ()}
                for step, moved, norm in ours:
                    if step in there:
                        by_step.setdefault(step, []).append(log_ratio(moved, there[step][0], norm))
            errors = [(step, statistics.median(found)) for step, found in sorted(by_step.items())]
            module = self.view(f"{root}:")
            row = self.judged(
                module, "size of the update", errors, LEAST_UPDATE, Phase.OPTIMISER, 5
            )
            if row.status is not Status.FAIL:
                row = self.one_update(root) or row
            yield row

    def one_update(self, root: str) -> Difference | None:
        """One weight that moves by quite another size at once, or grows otherwise, where the
        others agree."""
        for name, ours, theirs in self.named("update"):
            if name.partition(":")[0] != root:
                continue
            there = {item[0]: item[1:] for item in theirs or ()}
            errors = [(s, log_ratio(m, there[s][0], n)) for s, m, n in ours if s in there]
            grown = growth_errors(ours, there)
            owner, _, leaf = name.rpartition(".")
            cases = (
                (f"size of the update of {leaf}", errors, LEAST_ONE_UPDATE),
                (f"growth of {leaf}", grown, LEAST_GROWTH[self.short]),
            )
            for op, series, least in cases:
                how = (1, SUDDEN_GROWTH) if series is grown else (LEAST_STEPS, SUDDEN)
                step = sudden(series, least, *how)
                settled = series is grown or all(
                    e < START * SUDDEN for s, e in series if s < (step or 0)
                )
                if step is not None and settled and name in self.noise:
                    why = "it departs; its gradient is nothing but rounding in a recorded step"
                    self.found.leave_out(f"{op}, {self.view(owner)}", 1, why)
                elif step is not None and settled:
                    phase = Phase.STATE if self.by_hand_in(name, step) else Phase.OPTIMISER
                    return self.judged(self.view(owner), op, series, least, phase, 5, how)
        return None

    def by_hand_in(self, name: str, step: int) -> bool:
        """Whether a weight was written after its optimiser's update in this step, and in few
        others: a change by hand."""
        sides = [
            dict.fromkeys(item[0] for item in s.get(f"hand {name}", ())) for s in (self.a, self.b)
        ]
        return any(step in side and len(side) <= self.found.steps / 2 for side in sides)

    def by_hand(self) -> Iterator[Difference]:
        """Weights that are changed in some steps only, as such a step ends."""
        for name, ours, theirs in self.named("weight"):
            there = dict(map(tuple, theirs or ()))
            least, (owner, _, leaf) = LEAST_WEIGHT[self.short], name.rpartition(".")
            known = [(s, abs(n - there[s]) / max(abs(n), 1e-30)) for s, n in ours if s in there]
            if len(known) < len(ours):
                why = "it is changed in other steps than in the baseline"
                self.found.leave_out(f"{self.view(owner)}.{leaf}", 1, why)
            known = [(s, e) for s, e in known if s < self.parted]
            wrong = next((s for s, e in known if not e <= max(least, self.drift(s))), None)
            worst = max((e for _, e in known), default=None)
            reason = "it is changed by hand in this step, to other values"
            op = f"norm of {leaf}"
            yield self.row(
                self.view(owner), op, Phase.STATE, wrong, reason, 5, value=worst, limit=least
            )

    def drift(self, before: int) -> float:
        """The largest relative error that norms of weights have had in steps before one, and
        `SUDDEN` times as much room."""
        worst = 0.0
        for _, ours, theirs in self.named("update"):
            there = {item[0]: item[2] for item in theirs or ()}
            errors = [
                abs(norm - there[step]) / max(norm, 1e-30)
                for step, _, norm in ours
                if step in there and step < before
            ]
            worst = max([worst, *errors])
        return SUDDEN * worst

    def judged(
        self,
        module: str,
        op: str,
        errors: Sequence[tuple[int, float]],
        least: float,
        phase: Phase,
        order: int,
        how: tuple[int, float] = (LEAST_STEPS, SUDDEN),
    ) -> Difference:
        """One series of errors: FAIL where it jumps."""
        whole, end = len(errors), self.end_of_same_data()
        errors = [(step, error) for step, error in errors if step < end]
        if whole > len(errors):
            why = "the program's own results come back, as data or as a rate, and are others there"
            self.found.leave_out(op, whole - len(errors), why)
        step = sudden(errors, least, *how)
        if step is None and errors and max(e for _, e in errors) > least:
            first = next(s for s, e in errors if e > least)
            left = sum(s >= first for s, _ in errors)
            self.found.leave_out(
                op, left, "the free runs have drifted apart; only a jump is judged"
            )
        worst = max((e for _, e in errors), default=None)
        value = worst if step is None else dict(errors)[step]
        reason = "it leaves the baseline's at once in this step, after steps that agree"
        return self.row(module, op, phase, step, reason, order, value=value, limit=least)

    def row(
        self,
        module: str,
        op: str,
        phase: Phase,
        step: int | None,
        reason: Any,
        order: int,
        value: float | None = None,
        limit: float | None = None,
    ) -> Difference:
        """A series: PASS, or FAIL from a step on."""
        return Difference(
            module=module,
            call=0,
            phase=phase.value,
            op=op,
            metric="whole run",
            value=value,
            limit=limit,
            status=Status.PASS if step is None else Status.FAIL,
            stage=STAGE,
            step=step,
            reason=None if step is None else reason,
            order=order,
        )
