"""Results of models in calls without gradients, over the whole run: losses tell nothing of them. No
torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.verify.late_inputs import weights_apart
from joymigrate.verify.model import Difference, Phase, Status
from joymigrate.verify.series_errors import (
    ALIKE,
    CARRIED,
    LEAST_LOSS,
    LEAST_STEPS,
    START,
    SUDDEN,
    WEIGHTS,
    fingerprint_error,
    first_other_input,
    pair_steps,
    same_input,
)
from joymigrate.verify.watch_record import TwoRuns

# Results of models, relative. Where anything computes in 16 bits, or chooses by values (a router's
# topk), 2.5 units of bfloat16 (2^-7). Else one unit of TF32 and HF32 (2^-10), which chips put in
# float32's place; clean float32 runs stay below 1e-6 (benchmarks/verify_whole.py).
LEAST_RESULT = {False: 2.0**-10, True: LEAST_LOSS}
LEAST_HELD = 0.02  # relative: a weight or buffer that stands out among a model's others


class ResultSeries:
    """The results in two runs; `judge` has their series."""

    def __init__(self, judge: TwoRuns) -> None:
        self.judge = judge

    def rows(self) -> Iterator[Difference]:
        """Results of calls without gradients that leave the baseline's at once, as long as the
        model is given the same."""
        worst: list[float] = []
        for name, ours, theirs in self.judge.named("result"):
            place, leaf, _ = name.rsplit(" ", 2)
            departed = self.departed_at(place)
            there = {item[0]: item[1:] for item in theirs or ()}
            usual = statistics.median(norm for _, _, norm in ours) if ours else 0.0
            errors = [
                (step, fingerprint_error((folded, norm), there[step], usual))
                for step, folded, norm in ours
                if step in there and (departed is None or step < departed)
            ]
            if len(ours) > len(errors) and departed is not None:
                why = "the model is given other values from there on"
                self.judge.found.leave_out(
                    f"results of {self.judge.view(place)}", len(ours) - len(errors), why
                )
            worst += [
                max((e for _, e in errors), default=0.0),
                *([1.0] if departed is not None else []),
            ]
            op = f"result {leaf}".rstrip()
            least = LEAST_RESULT[self.judge.short or place.partition(":")[0] in self.judge.choosing]
            row = self.judge.judged(self.judge.view(place), op, errors, least, Phase.FORWARD, 4)
            if row.status is not Status.FAIL:
                row = self.first_result(row, name, errors, least) or row
            yield row
        self.judge.found.alike = bool(worst) and max(worst) < ALIKE

    def first_result(
        self, passed: Difference, name: str, errors: Sequence[tuple[int, float]], least: float
    ) -> Difference | None:
        """A result with too few before it to judge it by: the model is given the same, and the
        losses of all steps before it agree far better. Where one tensor of the model stands out
        then, the program has changed it by hand."""
        place, _, number = name.rsplit(" ", 2)
        root = place.partition(":")[0]
        if root in self.judge.drawing:
            return None
        for step, error in errors[:LEAST_STEPS]:
            moved = WEIGHTS * weights_apart(self.judge, step)
            most = max(least, CARRIED * self.judge.loss_error(step), moved)
            odd, cleared = self.odd_one(root, step)
            most = START if cleared else most
            if error <= most or step >= self.judge.end_of_same_data():
                continue
            if not self.given_the_same(place, number, step):
                continue
            if odd is not None and self.is_noise(odd):
                why = "it departs; its gradient is nothing but rounding in a recorded step"
                self.judge.found.noisy = True
                self.judge.found.leave_out(f"{self.judge.view(odd)} at a new call", 1, why)
                continue
            if odd is None:
                reason = "it is far from the baseline's, where losses agree and inputs are the same"
                return replace(passed, status=Status.FAIL, step=step, value=error, limit=most,
                               reason=reason)  # fmt: skip
            owner, _, leaf = odd.rpartition(".")
            what = Text("{leaf} at a call in a new way", leaf=leaf)
            reason = "it is changed by hand before this call, to other values"
            view = self.judge.view(owner)
            return self.judge.row(view, what, Phase.STATE, step, reason, 4, error, most)
        return None

    def is_noise(self, weight: str) -> bool:
        """Whether rounding alone moves a weight of this name, here or in the model whose training
        made it: one that a checkpoint was loaded into has its values."""
        leaf = weight.partition(":")[2].lstrip(".")
        return leaf in {name.partition(":")[2].lstrip(".") for name in self.judge.noise}

    def given_the_same(self, place: str, number: str, step: int) -> bool:
        """Whether all inputs of one call are the baseline's, and none is known to be made by a
        model."""
        start = f"input {place} "
        if any(
            name.startswith(start) and name.endswith(f" {number}")
            for side in (self.judge.ours, self.judge.theirs)
            for name in side.get("derived", ())
        ):
            return False
        found = 0
        for name, ours, theirs in self.judge.named("input"):
            if f"input {name}".startswith(start) and name.endswith(f" {number}"):
                pairs = [(x, y) for x, y in pair_steps(ours, theirs or ()) if x[0] == step]
                same = bool(pairs) and all(same_input(x, y) for x, y in pairs)
                if not same and any(x[0] == step for x in ours):
                    return False
                found += same
        return found > 0

    def odd_one(self, root: str, step: int) -> tuple[str | None, bool]:
        """The weight or buffer that is far from the baseline's where the others are not, and
        whether it is zeros on one side alone: rounding leaves none, but of a count."""
        errors, zeros = {}, set()
        for name, ours, theirs in self.judge.named("held"):
            if name.partition(":")[0] == root:
                there = {item[0]: item[1:] for item in theirs or ()}
                for at, folded, norm in ours:
                    if at == step and at in there:
                        errors[name] = fingerprint_error((folded, norm), there[at])
                        counts = all(float(v).is_integer() for v in (folded, there[at][0]))
                        cleared = (norm == 0) != (there[at][1] == 0) and not counts
                        zeros |= {name} if cleared else set()
        if not errors:
            return None, False
        worst = max(errors, key=lambda name: errors[name])
        usual = statistics.median(errors.values())
        odd = worst if errors[worst] > max(LEAST_HELD, SUDDEN * usual) else None
        return odd, odd in zeros

    def departed_at(self, place: str) -> int | None:
        """The first step in which a model is given other whole numbers, or other values from
        outside where `inputs` passes over them; None for none."""
        found = [self.judge.chosen_at(place)]
        for name, ours, theirs in self.judge.named("input"):
            if name.rsplit(" ", 2)[0] != place or f"input {name}" not in self.judge.own:
                continue
            first = first_other_input(ours, theirs or ())
            if first is None or not (
                self.judge.found.chooses or not self.judge.devices or self.judge.grows(name, first)
            ):
                continue
            found.append(first)
        return min((step for step in found if step is not None), default=None)
