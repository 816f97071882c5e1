"""The one judge of two runs: how far a target may be from a baseline is told by how far that is
from itself when every result moves by rounding. No torch.

A series is one thing seen over a run: a loss, a weight, a printed number. Its errors in the
baseline's other runs are its null. One rate of false alarms holds for all series of a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from joymigrate.stats import t_quantile
from joymigrate.verify.tolerance_file import JudgeLimits

Key = tuple[str, str]  # kind and name
RECORD: Key = ("record", "")  # the kind of the records of steps
FEWEST = 5  # values that tell a tail: a tenth of 50
ALL_OF_IT = 1.0  # a relative error that is as large as what is seen: no less can be told
RESOLUTION = 2.0**-23  # of float32, in which the sizes of what is seen are kept


@dataclass(frozen=True, slots=True)
class ErrorSeries:
    """Errors of one thing by where they were seen. `exact`: an error is there or not. Below `floor`
    an error is none: the resolution of its numbers; `of_weight`: what float32 resolves of a weight,
    which may have fewer digits."""

    points: Sequence[tuple[int, float]]
    exact: bool = False
    floor: float = RESOLUTION
    of_weight: bool = False

    def first_unequal(self) -> float:
        """Where an exact series differs first; infinite for nowhere."""
        return next((at for at, error in self.points if error), math.inf)

    def told_before(self, end: float) -> ErrorSeries:
        """What can be told where the nulls end before `end`: from there on what is not finite on
        one side alone, which needs no null."""
        points = [p for p in self.points if p[0] < end or p[1] == math.inf]
        return replace(self, points=points)


@dataclass(frozen=True, slots=True)
class SeriesDecision:
    """Where a series departs first (None: nowhere), its error there and the limit; from where on it
    can't be told, because the baseline's own runs depart."""

    at: int | None
    value: float | None
    limit: float | None
    untold: float = math.inf


@dataclass(slots=True)
class Judge:
    """Decides over series. `nulls`: those of each other run of the baseline; without any, series of
    finite numbers can't be told, and exact ones are held to the one run that there is."""

    limits: JudgeLimits
    nulls: Sequence[Mapping[Key, ErrorSeries]] = ()
    tests: int = 1
    floor: float = 0.0  # what the models' outputs are usually off by: no number is better
    coarser: float = 1.0  # how many times coarser than in the nulls the target rounds
    grain: float = 0.0  # the rounding of the program's coarsest type, which comes or does not
    end: float = math.inf  # the first step that the baseline's other runs did not see
    weights: float = RESOLUTION  # the rounding of the coarsest type of a weight
    known: dict[bool, float] = field(default_factory=dict)  # factors, once they are asked for

    def decide(self, key: Key, series: ErrorSeries) -> SeriesDecision:
        """Whether and where the target departs."""
        others = [null[key] for null in self.nulls if key in null]
        if series.exact:
            untold = min((one.first_unequal() for one in others), default=math.inf)
            unequal = series.first_unequal()
            return SeriesDecision(int(unequal) if unequal < untold else None, None, None, untold)
        worst = max((error for _, error in series.points), default=None)
        if len(others) < max(len(self.nulls), 1):
            # What is not finite on one side alone needs no null.
            at = next((at for at, error in series.points if error == math.inf), None)
            return SeriesDecision(at, worst, None, -math.inf if worst else math.inf)
        factor, null, limit = self.factor(key), max(self.least(series), self.floor), 0.0
        untold = math.inf
        known, next_one = sorted(point for one in others for point in one.points), 0
        for at, error in sorted(series.points):
            while next_one < len(known) and known[next_one][0] <= at:
                null, next_one = max(null, known[next_one][1]), next_one + 1
            limit = factor * null
            if not error <= limit:
                return SeriesDecision(at, error, limit)
            untold = at if limit >= ALL_OF_IT and untold == math.inf else untold
        return SeriesDecision(None, worst, limit, untold)

    def least(self, series: ErrorSeries) -> float:
        """The error below which a series has none, by the types of the program."""
        digits = max(self.weights / RESOLUTION, 1.0) if series.of_weight else 1.0
        return max(series.floor * digits, self.grain)

    def factor(self, key: Key = RECORD) -> float:
        """How many times its null a clean error may be: by how far the baseline's own runs are
        apart from one another, in all that is seen of them, and by how coarsely the target rounds.
        Never less than the tail of the records of steps, or of the series of the run; not in 16
        bits, where it would let gradients pass that are twice the baseline's."""
        of_steps = key[0] == RECORD[0]
        if of_steps not in self.known:
            spreads, limits = list(self.spreads()), self.limits
            found = [value for _, value in spreads]
            weight, alpha = limits.weight or 1.0, limits.alpha or 1e-3
            spread = 1.0 if limits.spread is None else limits.spread
            freedom = len(found) + weight
            squares = sum(value**2 for value in found) / 2  # of each of the two runs
            variance = (squares + weight * spread**2) / freedom
            quantile = t_quantile(1 - alpha / max(self.tests, 1), freedom)
            room = math.sqrt(variance * (1 + 1 / max(len(self.nulls), 1)))
            mine = [value for kind, value in spreads if (kind == RECORD[0]) is of_steps]
            tail = tail_quantile(mine, alpha) if self.grain <= RESOLUTION else 0.0
            most = max(room * quantile, tail)
            self.known[of_steps] = math.exp(min(most, 100.0)) * self.coarser
        return self.known[of_steps]

    def spreads(self) -> Iterable[tuple[str, float]]:
        """How far the baseline's other runs are apart in each series, by its kind: the logarithm of
        the ratio of their errors, its root mean square."""
        for first, second in zip(self.nulls, self.nulls[1:], strict=False):
            for key, one in first.items():
                if key in second and not one.exact:
                    found = list(ratios(one, second[key], self.least(one)))
                    if found:
                        yield key[0], math.sqrt(sum(value**2 for value in found) / len(found))


def tail_quantile(found: Sequence[float], alpha: float) -> float:
    """What none of so many logarithms is above, but at this rate: their largest tenth goes on as an
    exponential tail (Hill 1975, Annals of Statistics 3). An update by the sign of a gradient that
    is rounding makes such tails. 0 where the tenth is too few to tell."""
    count = len(found) // 10
    if count < FEWEST:
        return 0.0
    *largest, start = sorted(found, reverse=True)[: count + 1]
    mean_excess = sum(largest) / count - start
    return start + mean_excess * math.log(count / alpha)


def ratios(one: ErrorSeries, two: ErrorSeries, floor: float) -> Iterable[float]:
    """Logarithms of what two null series are apart by, where either is above the floor."""
    a, b = (list(accumulate((e for _, e in s.points), max)) for s in (one, two))
    for mine, other in zip(a, b, strict=False):
        if max(mine, other) > floor and math.isfinite(max(mine, other)):
            yield math.log(max(mine, floor) / max(other, floor))
