"""What k failures in n requests say about the true failure rate, however often one looks.

A bound from a fixed sample (Clopper and Pearson) errs in 5 % of the looks; who looks after every
request and acts on the first good look errs far more often. These bounds hold at all times
together: a mixture of likelihood ratios against a rate p is a supermartingale when the true rate
is p or higher, so it ever reaches 1/alpha with a probability of at most alpha (Ville's inequality;
Robbins, Annals of Mathematical Statistics 41, 1970; Howard, Ramdas, McAuliffe and Sekhon, Annals
of Statistics 49, 2021). All rates are shares between 0 and 1.
"""

from __future__ import annotations

import functools
import math

import numpy as np

ROUNDS = 60  # bisection halves the interval each time: 2**-60 is below a double's resolution
# The mixture: a rate as a share of the one that is tested, and its weight. More than half lies on
# "never fails", so that a clean proof takes at most 1.3 times the requests of a single look; the
# last share proves a rate that is just below the limit, which takes millions of requests.
MIXTURE = ((0.0, 0.6012), (0.1, 0.1), (0.25, 0.1), (0.5, 0.1), (0.75, 0.05), (0.9, 0.0488))


def log_evidence(failures: int, requests: int, rate: float) -> float:
    """Logarithm of the evidence that the true rate is below `rate`; 0 says nothing.

    At -log(alpha) or more the claim is proven at level alpha, at whatever time that is.
    """
    passed = requests - failures
    logs = [
        math.log(weight)
        + (failures * math.log(share) if failures else 0.0)
        + passed * (math.log1p(-share * rate) - math.log1p(-rate))
        for share, weight in MIXTURE
        if share or not failures
    ]
    return float(np.logaddexp.reduce(logs))


def upper_bound(failures: int, requests: int, confidence: float = 0.95) -> float:
    """The highest failure rate that `failures` in `requests` leave plausible, at every time.

    Without requests, and where all failed, the bound is 1.
    """
    if failures >= requests:
        return 1.0
    needed = -math.log1p(-confidence)
    low, high = failures / requests, 1.0 - 1e-12
    if log_evidence(failures, requests, high) < needed:
        return 1.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if log_evidence(failures, requests, middle) < needed:
            low = middle
        else:
            high = middle
    return high


@functools.lru_cache(maxsize=4096)
def requests_needed(failures: int, limit: float, confidence: float = 0.95) -> int:
    """The fewest requests with `failures` failures whose bound is at most `limit`."""
    needed = -math.log1p(-confidence)
    low, high = failures, max(failures + 1, math.ceil(3 / limit))
    while log_evidence(failures, high, limit) < needed:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if log_evidence(failures, middle, limit) < needed:
            low = middle
        else:
            high = middle
    return high


def chance_of_more(failures: int, requests: int, others: int, of_others: int) -> float:
    """How often chance gives one side `failures` or more of all failures, if both fail alike.

    Fisher's exact test, one-sided: `failures` of `requests` here, `others` of `of_others` there.
    """
    total, everything = failures + others, requests + of_others
    if not requests or not of_others:
        return 1.0
    most = min(total, requests)
    whole = log_choose(everything, total)
    logs = [
        log_choose(requests, k) + log_choose(of_others, total - k) - whole
        for k in range(failures, most + 1)
        if total - k <= of_others
    ]
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def log_choose(n: int, k: int) -> float:
    """Logarithm of n over k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
