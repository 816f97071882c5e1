"""The rule that decides from a stream of outcomes that the failure rate is too high.

It is fed runs of successes and single failures and says when it trips. It knows no clock.
`successes(n)` is exactly n times `successes(1)`; a simulation uses the former.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 3  # failures that decide anything: no single answer does
GRID = 60  # alternatives in the e-process mixture, spread evenly over the logarithm of the rate
FIRST = 0.75  # of an e-process's bet that is placed at its start
BETS = 16  # of the e-process that are remembered: those that are worth most
REFRESH = 256  # successes after which the e-process looks at its level again


@functools.cache
def terms_of(limit: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a failure and a success add to the logarithm of each alternative's ratio."""
    low, high = math.log(min(limit * 1.5, (1 + limit) / 2)), math.log((999 + limit) / 1000)
    rates = np.exp(np.linspace(low, high, GRID))
    return np.log(rates / limit), np.log1p(-rates) - math.log1p(-limit)


class EProcess:
    """Mixture likelihood ratio of rates above `limit` against `limit`; trips at 1/alpha.

    `FIRST` of the bet is placed at the start, the rest anew behind each failure, so that a backend
    which breaks after a long healthy time is seen as soon as one which is broken at once. The k-th
    bet gets 1/(k(k+1)) of that rest; together they stay one, so the bound holds for all of them
    (mixtures of restarts: Shin, Ramdas and Rinaldo, "E-detectors", 2022).
    """

    __slots__ = ("alpha", "failures", "limit", "log_value", "requests", "starts", "terms",
                 "tripped")  # fmt: skip

    def __init__(self, limit: float = 0.001, alpha: float = 0.01) -> None:
        self.limit, self.alpha = limit, alpha
        self.terms = terms_of(limit)
        self.requests = self.failures = 0
        # Requests and failures where a bet was placed, and its share. The poorest is forgotten,
        # which only lowers the evidence.
        self.starts: list[tuple[int, int, float]] = [(0, 0, FIRST)]
        self.log_value = 0.0
        self.tripped = False

    def successes(self, count: int) -> bool:
        """Take `count` successes in a row; whether it has tripped."""
        # A success only lowers the ratio: nothing to judge, and the level may be a little old.
        before, self.requests = self.requests, self.requests + count
        mark = self.requests // REFRESH * REFRESH
        if self.failures and mark > before:
            self.log_value = self.evidence(mark)
        return self.tripped

    def failure(self) -> bool:
        """Take one failure; whether it has tripped."""
        self.requests += 1
        self.failures += 1
        self.log_value = self.evidence(self.requests)
        enough = self.failures >= LEAST and self.log_value >= -math.log(self.alpha)
        self.tripped = self.tripped or enough
        share = (1 - FIRST) / (self.failures * (self.failures + 1))
        if len(self.starts) == BETS:
            del self.starts[int(self.worths(self.requests).argmin())]
        self.starts.append((self.requests, self.failures, share))
        return self.tripped

    def evidence(self, requests: int) -> float:
        """Logarithm of what all bets are worth after `requests`; 0 is what was placed."""
        waiting = math.log((1 - FIRST) / (self.failures + 1))  # what is not placed yet
        return float(np.logaddexp.reduce([waiting, *self.worths(requests)]))

    def worths(self, requests: int) -> NDArray[np.float64]:
        """Logarithm of what each bet is worth after `requests`: its share of the mixture's
        likelihood ratio over what came behind its start."""
        since, before, share = np.array(self.starts).T
        failures = self.failures - before
        passed = np.maximum(0.0, requests - since - failures)
        up, down = self.terms
        logs = np.outer(failures, up) + np.outer(passed, down)
        found: NDArray[np.float64] = np.log(share / GRID) + np.logaddexp.reduce(logs, axis=1)
        return found

    @property
    def quiet(self) -> bool:
        """Whether nothing speaks against the backend at the moment."""
        return self.log_value <= 0.0

    @property
    def level(self) -> float:
        """How near the rule is to tripping: 0 quiet, 1 tripped."""
        return 1.0 if self.tripped else min(1.0, max(0.0, self.log_value / -math.log(self.alpha)))

    def describe(self) -> str:
        """The rule with its parameters, for the user."""
        return f"eprocess against {self.limit:.3%}, false alarms at most {self.alpha:.1%} for ever"

    def state(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {
            "requests": self.requests,
            "failures": self.failures,
            "starts": list(self.starts),
            "log_value": self.log_value,
            "tripped": self.tripped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a saved `state`."""
        self.requests, self.failures = int(state["requests"]), int(state["failures"])
        self.starts = [(int(at), int(failed), share) for at, failed, share in state["starts"]]
        self.log_value, self.tripped = float(state["log_value"]), bool(state["tripped"])
