"""Exact binomial bounds without scipy: what k failures in n requests say about the true rate.

All rates are shares between 0 and 1. Source of the bound: Clopper and Pearson, Biometrika 26
(1934); of the interval for agreement: Wilson, JASA 22 (1927).
"""

from __future__ import annotations

import functools
import math

TINY = 1e-300
ROUNDS = 60  # bisection halves the interval each time: 2**-60 is below a double's resolution
Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def upper_bound(failures: int, requests: int, confidence: float = 0.95) -> float:
    """The highest failure rate that `failures` in `requests` leave plausible (one-sided).

    0 failures in 2,995 requests give 0.1 % at 95 %. Without requests the bound is 1.
    """
    if failures >= requests:
        return 1.0
    if failures == 0:
        return -math.expm1(math.log1p(-confidence) / requests)
    low, high = failures / requests, 1.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        # P[X <= k] falls as the rate grows; the bound is where it reaches 1 - confidence.
        if 1.0 - tail(failures + 1, requests, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


@functools.lru_cache(maxsize=4096)
def requests_needed(failures: int, limit: float, confidence: float = 0.95) -> int:
    """The fewest requests with `failures` failures whose upper bound is at most `limit`."""
    low, high = failures, max(failures + 1, math.ceil(3 / limit))
    # The bound is at most the limit when so few failures are improbable at the limit itself.
    while tail(failures + 1, high, limit) < confidence:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if tail(failures + 1, middle, limit) >= confidence:
            high = middle
        else:
            low = middle
    return high


def tail(failures: int, requests: int, rate: float) -> float:
    """P[X >= failures] for X ~ Binomial(requests, rate)."""
    if failures <= 0:
        return 1.0
    if failures > requests or rate <= 0.0:
        return 0.0
    if rate >= 1.0:
        return 1.0
    return incomplete_beta(failures, requests - failures + 1, rate)


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Two-sided 95 % interval of a share; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = hits / trials, Z95 * Z95
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = (
        Z95
        * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
        / (1 + z2 / trials)
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # The fraction converges fast only below the distribution's mean.
    if x < (a + 1) / (a + b + 2):
        return front * continued_fraction(a, b, x) / a
    return 1.0 - front * continued_fraction(b, a, 1.0 - x) / b


def continued_fraction(a: float, b: float, x: float) -> float:
    """Lentz's evaluation of the fraction in DLMF 8.17.22."""
    c, d = 1.0, 1.0 / floor(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1.0 / floor(1.0 + even * d), floor(1.0 + even / c)
        result *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1.0 / floor(1.0 + odd * d), floor(1.0 + odd / c)
        step = d * c
        result *= step
        if abs(step - 1.0) < 1e-14:
            break
    return result


def floor(value: float) -> float:
    """`value`, kept away from zero, which the fraction would divide by."""
    return value if abs(value) > TINY else TINY
