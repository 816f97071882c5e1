"""Causes of wrong losses, gradients and state by experiment on their sketches: what is tried must
remove at least 90 % of the error of every value of the event, more where few numbers are wrong
(`chance.py`), and all but 0.1 % where a factor is fitted. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank
from joymigrate.verify.calls import cause_of
from joymigrate.verify.falsifiability import independent, most_left
from joymigrate.verify.model import Cause, Difference
from joymigrate.verify.rest_stage import key_of

WRONG = 1e-5  # relative: an error that is explained, and a value that is right
FEW = 8.0  # independent numbers, of which one factor explains too many
# What a factor may leave of an error: both sides are float64 from the same values, so a true one
# leaves nothing (0.05 % at most in benchmarks/verify_whole.py), and a formula that is nearly a
# factor 0.3 to 8 %.
LEFT = 1e-3
KINDS = ("gradients", "loss", "state")
Array = NDArray[np.float64]
Values = dict[str, Array]


def sides_of(ours: Rank, theirs: Rank, row: Difference) -> tuple[Any, Any, Any]:
    """(key, event, the target's event) of a row; None where there is none."""
    mine, other = events(ours), events(theirs)
    key = next(iter(list(mine)[row.order : row.order + 1]), None)  # judge_rest numbers them
    return key, mine.get(key) if key else None, other.get(key) if key else None


def lines_of_rest(ours: Rank, theirs: Rank, row: Difference) -> tuple[str, str] | None:
    """Where an event arises in both sides' code."""
    if row.metric != "float64":
        return None
    found = [str((event or {}).get("line", "")) for event in sides_of(ours, theirs, row)[1:]]
    return (found[0], found[1]) if any(found) else None


def cause_of_rest(ours: Rank, theirs: Rank, row: Difference) -> Cause | None:
    """Why a row of S4R failed: both sides' calls differ, or an experiment explains it."""
    if row.metric != "float64":
        return None
    key, event, twin = sides_of(ours, theirs, row)
    if event is None or twin is None or row.op == "given":
        return None  # nothing was measured, or what goes into the event differs
    diff = cause_of(event.get("trace"), twin.get("trace"))
    if diff is not None:
        return Cause(diff.cause, diff.words, "diff", diff.lines)
    found = cause_by_values(ours, theirs, row) if key[0] in KINDS and row.value else None
    return Cause(*found, "experiment") if found is not None else None


def cause_by_values(ours: Rank, theirs: Rank, row: Difference) -> tuple[str, Any] | None:
    """(cause, words) by experiments on the values of an event."""
    mine, other = events(ours), events(theirs)
    key, event, twin = sides_of(ours, theirs, row)
    golden = sketches(event.get("sinks", {}))
    made = sketches(twin.get("rows", {}))
    shared = {name: golden[name] for name in golden.keys() & made.keys()}
    made = {name: made[name] for name in shared}
    before = mine.get((key[0], key[1] - 1, *key[2:]), {})
    found = cause_of_values(shared, made, sketches(before.get("sinks", {})))
    if found is not None and found[0] == "scale" and numbers_in(shared) <= FEW:
        after = (key[0], key[1] + 1, *key[2:])
        later = sketches(mine.get(after, {}).get("sinks", {}))
        there = sketches(other.get(after, {}).get("rows", {}))
        if not same_factor(factor_of(shared, made), later, there):
            return None
    return found


def numbers_in(values: Values) -> float:
    """How many independent numbers some values are."""
    return sum(independent(value) for value in values.values())


def same_factor(factor: float, golden: Values, made: Values) -> bool:
    """Whether a factor explains the next step's values, too: one number is any other one times
    something.

    A scaler of losses may have halved or doubled its factor between the steps (torch's GradScaler:
    `growth_factor` 2, `backoff_factor` 0.5): another power of two is the same explanation.
    """
    shared = {name: golden[name] for name in golden.keys() & made.keys()}
    there = {name: made[name] for name in shared}
    later = factor_of(shared, there)
    if is_power_of_two(factor) and is_power_of_two(later):
        factor = later
    return bool(shared) and all(
        apart(factor * value, made[name]) <= 0.01 * norm(made[name])
        for name, value in shared.items()
    )


def is_power_of_two(factor: float) -> bool:
    """Whether a factor that was fitted to float32 values is a power of two, and not 1."""
    if factor <= 0:
        return False
    power = np.log2(factor)
    return bool(abs(power) > 0.5 and abs(power - round(power)) < WRONG)


def factor_of(golden: Values, made: Values) -> float:
    """The factor that fits best."""
    up = sum(float(golden[n] @ made[n]) for n in golden)
    return up / max(sum(float(golden[n] @ golden[n]) for n in golden), 1e-300)


def cause_of_values(golden: Values, made: Values, before: Values) -> tuple[str, Any] | None:
    """(cause, words) of what an event made, `before`: its values in the step before."""
    tries = list(try_causes(golden, made, before))
    numbers = {name: independent(made[name] - golden[name]) for name in wrong_in(golden, made)}
    for cause, words, value, each in tries:
        left = worst(value, made, golden)
        # One number for all values, one for each, or none was taken from the error.
        fewest = min(numbers.values(), default=0.0) if each else sum(numbers.values())
        least = 1.0 if each is None else LEFT
        if left < min(least, most_left(fewest, 0 if each is None else 1, len(tries))):
            text = Text(
                "tried: {words}; it removes {removed} of the error",
                words=words,
                removed=f"{1 - left:.1%}",
            )
            return cause, text
    return None


def events(rank: Rank) -> dict[tuple[str, int, int, str], Any]:
    """Events by their moment, in the order in which they are judged."""
    return {key_of(event): event for event in rank.json("tape.json").get("events", [])}


def sketches(items: Mapping[str, Any]) -> Values:
    """The values whose sketches are known."""
    return {
        name: np.asarray(item["sketch"], float) for name, item in items.items() if "sketch" in item
    }


def wrong_in(golden: Values, made: Values) -> list[str]:
    """The values that are wrong."""
    return [n for n, right in golden.items() if apart(made[n], right) > WRONG * norm(right)]


def try_causes(
    golden: Values, made: Values, before: Values
) -> Iterator[tuple[str, Any, Values, bool | None]]:
    """(cause, words, the values that it would make, what was fitted), the plainest first. Fitted is
    one number for each value (True), one for all (False) or nothing (None)."""
    factor = factor_of(golden, made)
    words = Text("every value times {factor}", factor=f"{factor:.6g}")
    yield "scale", words, {name: factor * value for name, value in golden.items()}, False
    if golden.keys() <= before.keys():
        stale = {name: before[name] for name in golden}
        yield "stale values", "the values of the step before", stale, None
        both = {name: before[name] + value for name, value in golden.items()}
        yield "stale values", "the values of the step before added", both, None
    if len(golden) > 1:
        own = {
            name: value * (float(value @ made[name]) / max(float(value @ value), 1e-300))
            for name, value in golden.items()
        }
        yield "scale", "each value by a factor of its own (clipped one by one?)", own, True


def worst(value: Values, made: Values, golden: Values) -> float:
    """The largest share of an error that is left; a value that is right has to stay so."""
    left = 0.0
    for name, right in golden.items():
        error = max(apart(made[name], right), WRONG * norm(right), 1e-300)
        left = max(left, apart(value[name], made[name]) / error)
    return left if np.isfinite(left) else np.inf


def apart(one: Array, two: Array) -> float:
    """The distance of two values."""
    return norm(one - two)


def norm(value: Array) -> float:
    """The length of a value."""
    return float(np.linalg.norm(value))
