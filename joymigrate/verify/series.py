"""What is seen of every step of two runs, as series of errors. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from joymigrate.verify.judge import RESOLUTION, ErrorSeries, Key

Items = Sequence[Any]


def observe_run(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], roots: Mapping[str, str]
) -> dict[Key, ErrorSeries]:
    """Every series that both sides have. `roots` are the baseline's names of the other's models."""
    there = {rename_series(name, roots): items for name, items in theirs["series"].items()}
    made: dict[Key, ErrorSeries] = {}
    for name, items in ours["series"].items():
        kind, _, rest = name.partition(" ")
        if kind == "random" and not is_drawn_from(items, there.get(name, ())):
            continue
        if kind in ERRORS and name in there:
            made[kind, rest] = ERRORS[kind](items, there[name])
        if kind == "update" and name in there:
            made["growth", rest] = growth_errors(items, there[name])
    return made


def is_drawn_from(ours: Items, theirs: Items) -> bool:
    """Whether anybody draws from a generator that begins in the same state on both sides."""
    changes = any(len({item[1] for item in side}) > 1 for side in (ours, theirs))
    return changes and bool(theirs) and ours[0] == theirs[0]


def find_restarted(ours: Mapping[str, Items], theirs: Mapping[str, Items]) -> list[str]:
    """The generators that the baseline draws from and that begin in another state in the target."""
    return [
        name.partition(" ")[2]
        for name, items in ours.items()
        if name.startswith("random ")
        and len({item[1] for item in items}) > 1
        and items[:1] != list(theirs.get(name, ()))[:1]
    ]


def rename_series(name: str, roots: Mapping[str, str]) -> str:
    """A target's series under the baseline's name of the model."""
    kind, _, rest = name.partition(" ")
    root, colon, path = rest.partition(":")
    return f"{kind} {roots.get(root, root)}:{path}" if colon else name


def by_step(items: Items) -> dict[int, Any]:
    """Items without their steps, by step."""
    return {item[0]: item[1:] for item in items}


def pair_steps(ours: Items, theirs: Items) -> list[tuple[Any, Any]]:
    """Items of two series that belong to the same step."""
    return [(x, y) for x, y in zip(ours, theirs, strict=False) if x[0] == y[0]]


def equal_items(ours: Items, theirs: Items) -> ErrorSeries:
    """Items that have to be the same, in their order."""
    pairs = zip(ours, theirs, strict=False)
    return ErrorSeries([(int(x[0]), float(x[1:] != y[1:])) for x, y in pairs], exact=True)


def equal_states(ours: Items, theirs: Items) -> ErrorSeries:
    """States that are noted as they change, and have to be the same at the end of every step."""
    one, two = by_step(ours), by_step(theirs)
    a = b = None
    points = []
    for step in sorted({*one, *two}):
        a, b = one.get(step, a), two.get(step, b)
        points.append((max(int(step), 0), float(a != b)))
    return ErrorSeries(points, exact=True)


def input_errors(ours: Items, theirs: Items) -> ErrorSeries:
    """What a model is given, by two numbers of each; whole numbers have to be the same."""
    pairs = pair_steps(ours, theirs)
    if all(isinstance(v, int) for pair in pairs for item in pair for v in item[1:]):
        return ErrorSeries([(int(x[0]), float(x[1:] != y[1:])) for x, y in pairs], exact=True)
    return ErrorSeries([(int(x[0]), fingerprint_error(x[1:], y[1:])) for x, y in pairs])


def result_errors(ours: Items, theirs: Items) -> ErrorSeries:
    """Results and weights, by two numbers of each."""
    usual = statistics.median(item[2] for item in ours) if ours else 0.0
    pairs = pair_steps(ours, theirs)
    return ErrorSeries([(int(x[0]), fingerprint_error(x[1:], y[1:], usual)) for x, y in pairs])


def fingerprint_error(mine: Sequence[float], other: Sequence[float], usual: float = 0.0) -> float:
    """Distance of two results by two numbers of each, by the norm or the `usual` one where that is
    larger (a single number may cross 0); infinite for one not finite."""
    gap = max(abs(mine[0] - other[0]), abs(mine[1] - other[1]))
    if not math.isfinite(gap):
        return 0.0 if str(tuple(mine)) == str(tuple(other)) else math.inf
    return float(gap / max(abs(mine[1]), usual, 1e-30))


def loss_errors(ours: Items, theirs: Items, at: int = 1) -> ErrorSeries:
    """Single numbers; `at`: where they stand in their items."""
    usual = usual_size(item[at] for item in ours)
    pairs = pair_steps(ours, theirs)
    return ErrorSeries([(int(x[0]), value_error(x[at], y[at], usual)) for x, y in pairs])


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


def update_errors(ours: Items, theirs: Items) -> ErrorSeries:
    """Sizes of a weight's updates; a weight's own resolution moves them."""
    there = by_step(theirs)
    known = [(int(s), m, there[s][0], n) for s, m, n in ours if s in there]
    points = [(s, log_ratio(mine, other, norm)) for s, mine, other, norm in known]
    floor = resolution((mine, norm) for _, mine, _, norm in known)
    return ErrorSeries(points, floor=floor, of_weight=True)


def resolution(sizes: Iterable[tuple[float, float]]) -> float:
    """The resolution of weights of some norms by how far they move, the coarsest of them."""
    known = [(moved, norm) for moved, norm in sizes if math.isfinite(moved) and moved]
    return max([RESOLUTION, *(4 * RESOLUTION * norm / moved for moved, norm in known)])


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


def growth_errors(ours: Items, theirs: Items) -> ErrorSeries:
    """How differently each step changes a weight's norm, by how far the weight moves (0 to 2).
    Items are (step, how far it moved, norm)."""
    there, points, known = by_step(theirs), [], []
    before: tuple[float, float, float] | None = None
    for step, moved, norm in ours:
        other = there.get(step)
        if other is None:
            continue
        lost = not (math.isfinite(norm) or math.isfinite(other[1]))  # on both sides
        if before is not None and before[0] == step - 1 and not lost:
            gap = abs((norm - before[1]) - (other[1] - before[2]))
            most = max(moved, other[0], 1e-5 * norm, 1e-30)
            points.append((int(step), gap / most))
            known.append((most, norm))
        before = step, norm, other[1]
    return ErrorSeries(points, floor=resolution(known), of_weight=True)


def weight_errors(ours: Items, theirs: Items) -> ErrorSeries:
    """Norms of weights that are changed in some steps only."""
    there = by_step(theirs)
    known = [(s, n, there[s][0]) for s, n in ours if s in there]
    return ErrorSeries([(int(s), value_error(n, m, 0.0)) for s, n, m in known])


ERRORS: Mapping[str, Callable[[Items, Items], ErrorSeries]] = {
    "seed": equal_items,
    "random": equal_states,
    "batch": equal_items,
    "shapes": equal_items,
    "choice": equal_items,
    "input": input_errors,
    "result": result_errors,
    "held": result_errors,
    "loss": loss_errors,
    "plateau": lambda ours, theirs: loss_errors(ours, theirs, 3),
    "update": update_errors,
    "weight": weight_errors,
}


def random_words(name: str) -> str:
    """What a user calls a generator."""
    plain = {"torch": "torch's random numbers", "numpy": "numpy's random numbers"}
    return plain.get(name, f"random numbers of {name}")
