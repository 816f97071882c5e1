"""Traffic of the days to come: what a service will be asked, and when the cards run out.

Two questions. Replicas need the next minutes: what came a season ago, and head room (season and
trend by loess with an autoregression did no better on three made records). Buying needs months:
exponential smoothing of the daily peaks with its prediction intervals (Hyndman et al. 2008), tried
first on the record's own past, and widened by as much as they were too narrow there.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joymigrate.errors import JoyError
from joymigrate.extras import need
from joymigrate.run.cluster.autoscale import Load

Floats = NDArray[np.float64]

DAY_S = 86400.0
SEASONS = 7  # of the past that are looked at
TAKEN = 12  # times per season that the head room is taken anew
COVER = 0.95  # share of the past's errors that the spare replicas take
WEEK = 7  # days; peaks have a week's season from three weeks on
WIDEST = 20.0  # times the model's own interval
ORIGINS = 8  # days of the past from which the backtest forecasts


def even(loads: Sequence[Load]) -> tuple[Floats, float]:
    """Rates at equal steps (the median distance of the rows), and that step in seconds.

    Holes are filled with a straight line; `JoyError` for fewer than two moments.
    """
    at = np.array([load.at for load in loads], dtype=np.float64)
    rate = np.array([load.rate for load in loads], dtype=np.float64)
    gaps = np.diff(at)
    gaps = gaps[gaps > 0]
    if not len(gaps):
        raise JoyError("a forecast needs traffic at more than one moment")
    if not (np.isfinite(at).all() and np.isfinite(rate).all()) or (rate < 0).any():
        raise JoyError("traffic has a rate that is negative or not finite")
    step = float(np.median(gaps))
    if (at[-1] - at[0]) / step > 5_000_000:
        raise JoyError(
            f"the record spans {(at[-1] - at[0]) / DAY_S:.0f} days in steps of {step:g} s",
            help="leave out rows that lie far from the others",
        )
    grid = np.arange(at[0], at[-1] + step / 2, step)
    return np.interp(grid, at, rate), step


def ahead(loads: Sequence[Load], season_s: float, lead_s: float) -> list[float]:
    """For each row: the most that is expected until `lead_s` seconds later, in requests per second.

    Only rows before it are used. 0.0 until two seasons are known. What is expected is raised by the
    error that 95 % of the past forecasts kept below.
    """
    values, step = even(loads)
    period = round(season_s / step)
    if period < 4:
        raise JoyError(
            f"a season of {season_s:g} s has {period} rows of {step:g} s", help="at least 4 rows"
        )
    rolling = RollingForecast(period, math.ceil(lead_s / step) + 1)
    expected = []
    for value in values:
        expected.append(rolling.expected())
        rolling.add(float(value))
    start = loads[0].at
    places = [min(round((load.at - start) / step), len(values) - 1) for load in loads]
    return [expected[place] for place in places]


class RollingForecast:
    """What is expected while traffic goes on, row by row: what came a season ago, and head room.

    `period` and `lead` are in rows: one season, and how far ahead is looked. The head room is what
    95 % of such forecasts of the last seasons were short by, taken anew `TAKEN` times a season.
    """

    def __init__(self, period: int, lead: int) -> None:
        self.period, self.lead = period, lead
        self.values: list[float] = []
        self.errors: deque[float] = deque(maxlen=SEASONS * period)
        self.spare = 0.0

    def add(self, rate: float) -> None:
        """One more row is known."""
        if len(self.values) >= self.period:
            self.errors.append(rate - self.values[-self.period])
        self.values.append(rate)
        if self.errors and not len(self.values) % max(1, self.period // TAKEN):
            self.spare = max(0.0, float(np.quantile(self.errors, COVER)))

    def expected(self) -> float:
        """The most that is expected in the next `lead` rows; 0.0 until two seasons are known."""
        if len(self.values) < 2 * self.period:
            return 0.0
        begin = len(self.values) - self.period
        return max(self.values[begin : begin + self.lead]) + self.spare


def going_on(
    record: Sequence[Load], season_s: float, lead_s: float, now: float
) -> tuple[RollingForecast, float]:
    """The forecast of traffic that goes on after its record, and the seconds of one row.

    A record's times are seconds since 1970, or since a midnight in UTC. The hole between its last
    row and `now` is filled with the season before it, whole seasons left out.
    """
    values, step = even(record)
    period = round(season_s / step)
    if period < 4 or len(values) < 2 * period:
        raise JoyError(
            f"a season of {season_s:g} s has {period} rows of {step:g} s, the record {len(values)}",
            help="at least 4 rows in a season, and two seasons",
        )
    rolling = RollingForecast(period, math.ceil(lead_s / step) + 1)
    missing = round(((now - record[-1].at) % season_s) / step) % period
    for value in (*values, *values[len(values) - period :][:missing]):
        rolling.add(float(value))
    return rolling, step


@dataclass(frozen=True, slots=True)
class ForecastInterval:
    """A figure with its interval."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Backtest:
    """Forecasts made from days of the past, held against what came."""

    forecasts: int
    days_ahead: int
    error_pct: float  # mean absolute error in percent of what came
    inside_pct: float  # share of days inside the model's own interval
    widened: float  # the interval's width is this many times the model's own


@dataclass(frozen=True, slots=True)
class Outgrowth:
    """When a service needs more cards than there are; days are counted from the record's end."""

    days: tuple[ForecastInterval, ...]  # cards needed on each coming day
    full: tuple[int | None, int | None, int | None]  # earliest, expected, latest day; None: not yet
    buy: ForecastInterval  # cards missing on the worst of these days
    backtest: Backtest
    level: float


def peaks(loads: Sequence[Load]) -> Floats:
    """The highest rate of each whole day."""
    values, step = even(loads)
    per_day = round(DAY_S / step)
    whole = len(values) // per_day if per_day else 0
    if whole < 10:
        raise JoyError(
            f"the record holds {whole} whole days", help="at least 10, for a trend with an interval"
        )
    peak: Floats = values[: whole * per_day].reshape(whole, per_day).max(axis=1)
    return peak


def coming_peaks(known: Floats, days: int, level: float) -> list[ForecastInterval]:
    """Daily peaks to come with an interval of `level` (0.9: 90 %)."""
    need("cluster", "statsmodels", what="a forecast")
    import pandas
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    if not np.ptp(known):
        return [ForecastInterval(*[float(known[-1])] * 3)] * days
    weekly = len(known) >= 3 * WEEK
    season = {"seasonal": "add", "seasonal_periods": WEEK} if weekly else {}
    series = pandas.Series(known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence: the backtest says what it is worth
        fitted = ETSModel(series, trend="add", **season).fit(disp=False)
        table = fitted.get_prediction(start=len(known), end=len(known) + days - 1)
        frame = table.summary_frame(alpha=1 - level)
    return [
        ForecastInterval(max(0.0, float(low)), max(0.0, float(middle)), max(0.0, float(high)))
        for low, middle, high in zip(
            frame["pi_lower"], frame["mean"], frame["pi_upper"], strict=True
        )
    ]


def backtest(known: Floats, days: int, level: float) -> Backtest:
    """Forecast from days of the past; at least ten days are known to each of them."""
    most = min(days, max(1, (len(known) - 10) // 2))
    last = len(known) - most
    origins = sorted({int(one) for one in np.linspace(max(10, last // 2), last, ORIGINS)})
    errors, inside, wanted = [], [], []
    for origin in origins:
        spans = coming_peaks(known[:origin], most, level)
        for span, came in zip(spans, known[origin : origin + most], strict=True):
            errors.append(abs(span.middle - came) / max(abs(float(came)), 1e-9))
            inside.append(span.low <= came <= span.high)
            side = span.high - span.middle if came > span.middle else span.middle - span.low
            wanted.append(abs(span.middle - came) / max(side, 1e-9) if came != span.middle else 0.0)
    return Backtest(
        forecasts=len(origins),
        days_ahead=most,
        error_pct=100 * float(np.mean(errors)),
        inside_pct=100 * float(np.mean(inside)),
        widened=min(max(1.0, float(np.quantile(wanted, level))), WIDEST),
    )


def widen(span: ForecastInterval, factor: float) -> ForecastInterval:
    """An interval `factor` times as wide on both sides, not below 0."""
    low = max(0.0, span.middle - factor * (span.middle - span.low))
    return ForecastInterval(low, span.middle, span.middle + factor * (span.high - span.middle))


def outgrow(
    loads: Sequence[Load], target: float, cards: int, per_replica: int, days: int, level: float
) -> Outgrowth:
    """Cards that the coming days need against those that there are.

    A replica carries `target` requests per second on `per_replica` cards.
    """
    known = peaks(loads)
    tried = backtest(known, days, level)

    def needed(rate: float) -> float:
        return math.ceil(rate / target - 1e-9) * per_replica

    coming = [widen(one, tried.widened) for one in coming_peaks(known, days, level)]
    wanted = [
        ForecastInterval(needed(one.low), needed(one.middle), needed(one.high)) for one in coming
    ]

    def first(values: list[float]) -> int | None:
        return next((day for day, value in enumerate(values, start=1) if value > cards), None)

    low, middle, high = ([getattr(one, end) for one in wanted] for end in ("low", "middle", "high"))
    return Outgrowth(
        days=tuple(wanted),
        full=(first(high), first(middle), first(low)),
        buy=ForecastInterval(*(max(0.0, max(values) - cards) for values in (low, middle, high))),
        backtest=tried,
        level=level,
    )
