"""Series of numbers of two runs: how far their items are apart, and where they part at once. No
torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Our own choice, from clean runs with simulated rounding (benchmarks/verify_whole.py): there no
# error above the least was this many times the largest of all steps before.
SUDDEN = 20.0
LEAST_INPUT = 1e-2  # relative
ALIKE = 1e-4  # relative: results that rounding alone tells apart
START = 1e-3  # an error that rounding makes in any step
LEAST_STEPS = 2  # before the one that is judged
LEAST_LOSS = 0.02  # of a loss, relative
CARRIED = 50.0  # a result's error by that of the losses before it
WEIGHTS = 5.0  # and by how far the weights are apart, at most 4 in clean runs in 16 bits


def rename_series(name: str, roots: Mapping[str, str]) -> str:
    """A target's series under the baseline's name of the model."""
    kind, _, rest = name.partition(" ")
    root, colon, path = rest.partition(":")
    return f"{kind} {roots.get(root, root)}:{path}" if colon else name


def random_words(name: str) -> str:
    """What a user calls a generator."""
    plain = {"torch": "torch's random numbers", "numpy": "numpy's random numbers"}
    return plain.get(name, f"random numbers of {name}")


def first_unequal_state(ours: Sequence[Any], theirs: Sequence[Any], steps: int) -> int | None:
    """The first step at whose end two generators are in other states."""
    one, two = dict(map(tuple, ours)), dict(map(tuple, theirs))
    a = b = None
    for step in range(-1, steps):
        a, b = one.get(step, a), two.get(step, b)
        if a != b:
            return max(step, 0)
    return None


def other_input(mine: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two inputs differ by more than rounding; whole numbers at all."""
    if all(isinstance(v, int) for v in (*mine[1:], *other[1:])):
        return bool(mine[1:] != other[1:])
    return input_error(mine, other) > LEAST_INPUT


def input_error(mine: Sequence[Any], other: Sequence[Any]) -> float:
    """Relative distance of two inputs by two numbers of each."""
    gap = max(abs(mine[1] - other[1]), abs(mine[2] - other[2]))
    return float(gap / max(abs(mine[2]), 1e-30))


def same_input(mine: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two inputs are the same but for the last digits."""
    return not other_input(mine, other) and input_error(mine, other) <= ALIKE


def first_other_input(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    """The first step of two series of inputs that differs by more than rounding."""
    return next((int(x[0]) for x, y in pair_steps(ours, theirs) if other_input(x, y)), None)


def pair_steps(ours: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Items of two series that belong to the same step."""
    return [(x, y) for x, y in zip(ours, theirs, strict=False) if x[0] == y[0]]


def fingerprint_error(mine: Sequence[float], other: Sequence[float], usual: float = 0.0) -> float:
    """Distance of two results by two numbers of each, by the norm or the `usual` one where that is
    larger (a single number may cross 0); infinite for one not finite."""
    gap = max(abs(mine[0] - other[0]), abs(mine[1] - other[1]))
    if not math.isfinite(gap):
        return 0.0 if str(tuple(mine)) == str(tuple(other)) else math.inf
    return gap / max(abs(mine[1]), usual, 1e-30)


def usual_size(values: Iterable[float]) -> float:
    """The median size of the finite ones among some numbers; 0 for none."""
    return statistics.median([abs(v) for v in values if math.isfinite(v)] or [0.0])


def value_error(mine: float, other: float, usual: float) -> float:
    """Distance of two numbers, by the first one or the `usual` size where that is larger; 0 for the
    same number that is not finite, infinite for another one."""
    gap = abs(mine - other)
    if not math.isfinite(gap):
        return 0.0 if str(mine) == str(other) else math.inf
    return gap / max(abs(mine), usual, 1e-30)


def log_ratio(mine: float, other: float, norm: float) -> float:
    """|log(mine / other)| of two sizes of an update of weights of this norm; of sizes that are not
    finite on both sides 0."""
    finite = math.isfinite(mine), math.isfinite(other)
    if not all(finite):
        return math.inf if any(finite) else 0.0
    least = max(1e-9 * norm, 1e-30)
    if mine < least and other < least:
        return 0.0
    return abs(math.log(max(other, least) / max(mine, least)))


def growth_errors(
    ours: Sequence[Sequence[float]], theirs: Mapping[float, Sequence[float]]
) -> list[tuple[int, float]]:
    """How differently each step changes a weight's norm, by how far the weight moves (0 to 2).
    Items are (step, how far it moved, norm); norms are known to about 4e-7."""
    made = []
    before: tuple[int, float, float] | None = None
    for step, moved, norm in ours:
        other = theirs.get(step)
        if other is None:
            continue
        lost = not (math.isfinite(norm) or math.isfinite(other[1]))  # on both sides
        if before is not None and before[0] == step - 1 and not lost:
            gap = abs((norm - before[1]) - (other[1] - before[2])) - 4e-7 * norm
            # Where nothing moves, another device's rounding of the norm is no growth.
            made.append((int(step), max(0.0, gap) / max(moved, other[0], 1e-5 * norm, 1e-30)))
        before = int(step), norm, other[1]
    return made


def sudden(
    errors: Sequence[tuple[int, float]],
    least: float,
    after: int = LEAST_STEPS,
    times: float = SUDDEN,
) -> int | None:
    """The first step whose error is above `least` and far above all before it, of which there are
    to be `after`."""
    worst = min(START, least / SUDDEN)
    for number, (step, error) in enumerate(errors):
        if number >= after and not error <= max(least, times * worst):
            return step
        worst = max(worst, error)
    return None
