"""What a model is given in its first call, where that comes after the recorded steps. No torch.

Nobody knows then whether another model made it. It can't be far from the baseline's where the
losses of all steps before agree; where they have drifted, as far as the weights are apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from joymigrate.verify.model import Difference, Phase
from joymigrate.verify.series_errors import (
    ALIKE,
    LEAST_INPUT,
    WEIGHTS,
    fingerprint_error,
    input_error,
)
from joymigrate.verify.watch_record import TwoRuns

# Relative, where the losses have drifted and no other model is called in this step. As for values
# that go into a loss (rest_stage.MADE).
MOVED = 0.1
REASON = "other values are given to the model, where the losses agree far better"


def late_input(
    judge: TwoRuns, name: str, ours: Sequence[Any], theirs: Sequence[Any]
) -> Difference | None:
    """A failure of one series of inputs; None where it is judged elsewhere, or may be rounding."""
    made = {one for side in (judge.ours, judge.theirs) for one in side.get("derived", ())}
    mine, other = ours[0], theirs[0]
    whole = all(isinstance(v, int) for v in mine[1:])
    free = judge.found.chooses or judge.found.takes or not judge.devices
    if f"input {name}" in {*made, *judge.own} or mine[0] != other[0] or whole or free:
        return None
    place, leaf, _ = name.rsplit(" ", 2)
    step, error, most = int(mine[0]), input_error(mine, other), LEAST_INPUT
    if judge.loss_error(step) > ALIKE:
        alone = not others_called(judge, place.partition(":")[0], step)
        most = max(MOVED, WEIGHTS * weights_apart(judge, step)) if alone else math.inf
    if step >= judge.end_of_same_data() or error <= most:
        return None
    return judge.row(
        judge.view(place), f"input {leaf}", Phase.INPUT, step, REASON, 3, value=error, limit=most
    )


def others_called(judge: TwoRuns, root: str, step: int) -> bool:
    """Whether another model returned something without gradients in a step."""
    return any(
        item[0] == step
        for name, items, _ in judge.named("result")
        if name.partition(":")[0] != root
        for item in items
    )


def weights_apart(judge: TwoRuns, until: int) -> float:
    """How far the weights of models are apart as they are called in new ways, up to a step: the
    median of those that are apart."""
    found = []
    for _, ours, theirs in judge.named("held"):
        there = {item[0]: item[1:] for item in theirs or ()}
        known = [item for item in ours if item[0] in there and item[0] <= until]
        found += [fingerprint_error(item[1:], there[item[0]]) for item in known]
    return statistics.median([error for error in found if error > 0] or [0.0])
