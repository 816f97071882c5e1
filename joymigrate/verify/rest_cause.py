"""Causes of wrong losses, gradients and state by experiment on their sketches: what is tried must
remove at least 90 % of the error of every value of the event. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank
from joymigrate.verify.model import Difference
from joymigrate.verify.rest_stage import key_of

LEFT = 0.1  # of the error
WRONG = 1e-5  # relative: an error that is explained, and a value that is right
KINDS = ("gradients", "loss", "state")
Array = NDArray[np.float64]
Values = dict[str, Array]


def cause_of_rest(ours: Rank, theirs: Rank, row: Difference) -> tuple[str, Any] | None:
    """(cause, words) of a failed row of S4R; None where no experiment explains it."""
    if row.metric != "float64" or row.value is None or row.op == "given":
        return None  # nothing was measured, or what goes into the event differs
    mine, other = events(ours), events(theirs)
    key = next(iter(list(mine)[row.order : row.order + 1]), None)  # judge_rest numbers them
    if key is None or key[0] not in KINDS or key not in other:
        return None
    event, twin = mine[key], other[key]
    golden = sketches(event.get("sinks", {}))
    made = sketches(twin.get("rows", {}))
    shared = {name: golden[name] for name in golden.keys() & made.keys()}
    made = {name: made[name] for name in shared}
    if sum(value.size for value in shared.values()) < 2:
        return None  # one number is any other one times a factor
    before = mine.get((key[0], key[1] - 1, *key[2:]), {})
    for cause, words, value in tried(shared, made, sketches(before.get("sinks", {}))):
        left = worst(value, made, shared)
        if left <= LEFT:
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


def tried(golden: Values, made: Values, before: Values) -> Iterator[tuple[str, Any, Values]]:
    """(cause, words, the values that it would make), the plainest first."""
    up = sum(float(golden[n] @ made[n]) for n in golden)
    down = sum(float(golden[n] @ golden[n]) for n in golden)
    factor = up / max(down, 1e-300)
    words = Text("every value times {factor}", factor=f"{factor:.6g}")
    yield "scale", words, {name: factor * value for name, value in golden.items()}
    if golden.keys() <= before.keys():
        stale = {name: before[name] for name in golden}
        yield "stale values", "the values of the step before", stale
        both = {name: before[name] + value for name, value in golden.items()}
        yield "stale values", "the values of the step before added", both
    if len(golden) > 1:
        own = {
            name: value * (float(value @ made[name]) / max(float(value @ value), 1e-300))
            for name, value in golden.items()
            if value.size > 1
        }
        if len(own) == len(golden):
            yield "scale", "each value by a factor of its own (clipped one by one?)", own


def worst(value: Values, made: Values, golden: Values) -> float:
    """The largest share of an error that is left; a value that is right has to stay so."""
    left = 0.0
    for name, right in golden.items():
        error = float(np.linalg.norm(made[name] - right))
        error = max(error, WRONG * float(np.linalg.norm(right)), 1e-300)
        left = max(left, float(np.linalg.norm(value[name] - made[name])) / error)
    return left if np.isfinite(left) else np.inf
