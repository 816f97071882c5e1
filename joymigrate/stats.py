"""Tests and intervals for paired samples, in closed form: no scipy, no simulation.

Sources: E. B. Wilson, JASA 22 (1927) for the interval of a share; Q. McNemar, Psychometrika 12
(1947), exact by the binomial; T. Tango, Statistics in Medicine 17 (1998) 891-908 for the difference
of paired shares (a score test: right also where nothing is discordant, where Wald's is not);
NIST DLMF 8.17.22 for the incomplete beta function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its interval, in the unit of the estimate."""

    value: float
    low: float
    high: float


def wilson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """The share of successes and its Wilson interval; [0, 1] where there is no sample."""
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    z = NORMAL.inv_cdf(0.5 + confidence / 2)
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes <= 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if successes >= n else min(1.0, (centre + half) / scale)
    return Interval(share, low, high)


def binomial_tail(k: int, n: int, p: float = 0.5) -> float:
    """P(X <= k) for X ~ Binomial(n, p), by the incomplete beta function."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return incomplete_beta(n - k, k + 1, 1 - p)


def mcnemar_exact(lost: int, gained: int) -> float:
    """Two-sided p-value that losses and gains are equally likely; 1 without discordant pairs."""
    n = lost + gained
    return 1.0 if n == 0 else min(1.0, 2 * binomial_tail(min(lost, gained), n))


def sign_test(above: int, below: int) -> float:
    """Two-sided p-value that a difference is as often positive as negative; ties left out."""
    return mcnemar_exact(below, above)


def tango_z(gained: float, lost: float, n: int, difference: float) -> float:
    """Tango's score statistic for the hypothesis share(target) - share(baseline) = `difference`.

    `gained` counts pairs where only the target is right, `lost` where only the baseline is.
    Positive: the data speak for a larger difference. 0 where there is no sample.
    """
    if n == 0:
        return 0.0
    a = 2 * n
    b = -gained - lost + (2 * n - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    only_baseline = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = n * (2 * only_baseline + difference * (1 - difference))
    distance = gained - lost - n * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def tango_interval(gained: float, lost: float, n: int, confidence: float = 0.95) -> Interval:
    """Difference of the paired shares, target minus baseline, with its score interval."""
    if n == 0:
        return Interval(math.nan, -1.0, 1.0)
    z = NORMAL.inv_cdf(0.5 + confidence / 2)
    value = (gained - lost) / n

    def excess(target: float) -> Callable[[float], float]:
        return lambda d: tango_z(gained, lost, n, d) - target

    edge = 1 - 1e-12
    low = bisect(excess(z), -edge, value) if value > -1 else -1.0
    high = bisect(excess(-z), value, edge) if value < 1 else 1.0
    return Interval(value, low, high)


def paired_n(discordance: float, margin: float, alpha: float, power: float) -> int | None:
    """Pairs needed to show non-inferiority by `margin` when both sides are equally good.

    n = (z_alpha + z_power)^2 * discordance / margin^2, one-sided. A discordance below the margin
    counts as the margin: at the edge of the hypothesis at least that share is discordant. None
    where no number of pairs can show it (margin 0).
    """
    if margin <= 0:
        return None
    z = NORMAL.inv_cdf(1 - alpha) + NORMAL.inv_cdf(power)
    return math.ceil(z * z * max(discordance, margin) / margin**2)


def mean_n(deviation: float, margin: float, alpha: float, power: float) -> int | None:
    """As `paired_n`, for the mean of differences with this standard deviation; None where that is
    not known."""
    if margin <= 0 or not math.isfinite(deviation):
        return None
    z = NORMAL.inv_cdf(1 - alpha) + NORMAL.inv_cdf(power)
    return max(2, math.ceil((z * deviation / margin) ** 2))


def mean_interval(n: int, mean: float, variance: float, confidence: float) -> Interval:
    """A mean of `n` values with its Student t interval; unbounded below two values."""
    if n < 2:
        return Interval(mean, -math.inf, math.inf)
    half = t_quantile(0.5 + confidence / 2, n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half)


def t_p_value(n: int, mean: float, variance: float, against: float = 0.0) -> float:
    """Two-sided p-value that the mean of `n` values is `against`."""
    if n < 2:
        return 1.0
    distance = mean - against
    if variance <= 0:
        return 1.0 if distance == 0 else 0.0
    t = distance / math.sqrt(variance / n)
    return 2 * t_tail(abs(t), n - 1)


def t_tail_of(n: int, distance: float, variance: float) -> float:
    """P(a mean lies above by `distance` or more by chance); 1 below two values."""
    if n < 2:
        return 1.0
    if variance <= 0:
        return 0.0 if distance > 0 else 1.0
    return t_tail(distance / math.sqrt(variance / n), n - 1)


def t_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's distribution."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return half if t >= 0 else 1 - half


def t_quantile(p: float, freedom: float) -> float:
    """The value below which Student's distribution holds the share `p`."""
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    high = 2.0
    while t_tail(high, freedom) > 1 - p:
        high *= 2
    return bisect(lambda t: 1 - p - t_tail(t, freedom), 0.0, high)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(log_front) / (a * beta_fraction(a, b, x))


def beta_fraction(a: float, b: float, x: float) -> float:
    """DLMF 8.17.22 by Lentz's method. Converges in O(sqrt(max(a, b))) terms."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for m in range(1, 20_000):
        half = m // 2
        if m % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def bisect(f: Callable[[float], float], low: float, high: float) -> float:
    """A zero of a monotone function between `low` and `high`, to 1e-12 or float's end."""
    positive = f(low) > 0
    for _ in range(200):
        middle = (low + high) / 2
        if high - low < 1e-12 or middle in (low, high):
            break
        if (f(middle) > 0) == positive:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def quantile(values: Sequence[float], p: float) -> float:
    """The p-quantile of sorted values, linear between two; NaN without values."""
    if not values:
        return math.nan
    place = p * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
