"""The one judge of two runs: how far a target may be from a baseline is told by how far that is
from itself when every result moves by rounding. No torch.

A series is one thing seen over a run: a loss, a weight, a printed number. Its errors in the
baseline's other runs are its null. One rate of false alarms holds for all series of a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from joymigrate.stats import t_quantile
from joymigrate.verify.tolerance_file import JudgeLimits

Key = tuple[str, str]  # kind and name
RECORD: Key = ("record", "")  # the kind of the records of steps
UNSEEN: Key = ("unseen", "")  # of what the baseline's runs show too rarely to tell how it spreads
# Kinds of series whose points are steps of the run.
BY_STEP = ("input", "held", "result", "loss", "plateau", "weight", "update", "growth")
FEWEST = 4  # series that tell what is usual
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
    known: dict[str, float] = field(default_factory=dict)  # factors, once they are asked for
    # the usual error of a kind of series till each step, likewise
    usual: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=dict)

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
        factor, least, null = self.factor(key), self.least(key, series), self.floor
        limit, untold = 0.0, math.inf
        known, next_one = sorted(point for one in others for point in one.points), 0
        for at, error in sorted(series.points):
            while next_one < len(known) and known[next_one][0] <= at:
                null, next_one = max(null, known[next_one][1]), next_one + 1
            limit = factor * max(null, least(at))
            if not error <= limit:
                return SeriesDecision(at, error, limit)
            untold = at if limit >= ALL_OF_IT and untold == math.inf else untold
        return SeriesDecision(None, worst, limit, untold)

    def least(self, key: Key, series: ErrorSeries) -> Callable[[int], float]:
        """The error below which a series has none at a step: by the types of the program, and by
        what half of the series of its kind are off by till then in the baseline's runs. One that
        happened to move less in them will not do so in every clean run."""
        digits = max(self.weights / RESOLUTION, 1.0) if series.of_weight else 1.0
        least = max(series.floor * digits, self.grain)
        if key[0] not in BY_STEP:
            return lambda at: least
        steps, usual = self.usual_errors(key[0])
        return lambda at: max(least, float(usual[np.searchsorted(steps, at, "right") - 1]))

    def usual_errors(self, kind: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The median over the series of a kind of the most that each is off by till a step."""
        if kind not in self.usual:
            found: dict[Key, list[tuple[int, float]]] = {}
            for null in self.nulls:
                for key, one in null.items():
                    if key[0] == kind and not one.exact:
                        found.setdefault(key, []).extend(one.points)
            steps = np.unique([at for points in found.values() for at, _ in points] or [0])
            rows = np.full((max(len(found), 1), len(steps)), np.nan)
            for row, points in zip(rows, found.values(), strict=False):
                if points:
                    at, errors = np.array(points).T
                    np.fmax.at(row, np.searchsorted(steps, at), np.minimum(errors, ALL_OF_IT))
                np.fmax.accumulate(row, out=row)
            seen, usual = ~np.isnan(rows).all(axis=0), np.zeros(len(steps))
            usual[seen] = np.nanmedian(rows[:, seen], axis=0)
            self.usual[kind] = steps, usual if len(found) >= FEWEST else np.zeros(len(steps))
        return self.usual[kind]

    def factor(self, key: Key = RECORD) -> float:
        """How many times its null a clean error may be: by how far the baseline's own runs are
        apart from one another, in all that is seen of them. Series of the run begin with what
        records of steps tell, which are many more; nothing tells of what is `UNSEEN`."""
        if key[0] not in self.known:
            weight = self.limits.weight or 1.0
            variance = (1.0 if self.limits.spread is None else self.limits.spread) ** 2
            freedom, found = weight, list(self.spreads())
            for of_steps in {UNSEEN[0]: (), RECORD[0]: (True,)}.get(key[0], (True, False)):
                mine = [value for name, value in found if (name == RECORD[0]) is of_steps]
                squares = sum(value**2 for value in mine) / 2  # of each of the two runs
                freedom = len(mine) + weight
                variance = (squares + weight * variance) / freedom
            self.known[key[0]] = self.room(variance, freedom)
        return self.known[key[0]]

    def room(self, variance: float, freedom: float) -> float:
        """The same, by the variance of a logarithm and the degrees of freedom of that, for a target
        that rounds so many times coarser."""
        quantile = t_quantile(1 - (self.limits.alpha or 1e-3) / max(self.tests, 1), freedom)
        room = math.sqrt(variance * (1 + 1 / max(len(self.nulls), 1))) * quantile
        return math.exp(min(room, 100.0)) * self.coarser

    def spreads(self) -> Iterable[tuple[str, float]]:
        """How far the baseline's other runs are apart in each series, by its kind: the logarithm of
        the ratio of their errors, its root mean square."""
        for first, second in zip(self.nulls, self.nulls[1:], strict=False):
            for key, one in first.items():
                if key in second and not one.exact:
                    found = list(ratios(one, second[key], self.least(key, one)))
                    if found:
                        yield key[0], math.sqrt(sum(value**2 for value in found) / len(found))


def ratios(one: ErrorSeries, two: ErrorSeries, least: Callable[[int], float]) -> Iterable[float]:
    """Logarithms of what two null series are apart by, where either is above the least error."""
    a, b = (list(accumulate((e for _, e in s.points), max)) for s in (one, two))
    for (at, _), mine, other in zip(one.points, a, b, strict=False):
        if max(mine, other) > (floor := least(at)) and math.isfinite(max(mine, other)):
            yield math.log(max(mine, floor) / max(other, floor))
