"""Three ways to decide from a stream of outcomes that the failure rate is too high.

Each rule is fed runs of successes and single failures and says when it trips. None of them knows
a clock. `successes(n)` is exactly n times `successes(1)`; a simulation uses the former.

* `Cusum`    Page's cumulative sum for Bernoulli outcomes: p0 is a rate to live with, p1 one to
             catch, h the threshold. Forgets good times, so it is fast after a long healthy one.
* `Literal`  "more than 0.1 % of the last `window` requests, once there are `minimum`".
* `EProcess` a mixture of likelihood ratios against the limit; its false alarms are at most
             `alpha` over the whole life of the stream (Ville's inequality).
"""

from __future__ import annotations

import functools
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

LEAST = 3  # failures that decide anything: no single answer does
GRID = 60  # alternatives in the e-process mixture, spread evenly over the logarithm of the rate
FIRST = 0.75  # of an e-process's bet that is placed at its start
BETS = 16  # of the e-process that are remembered: the last ones
REFRESH = 256  # successes after which the e-process looks at its level again
REBASE = 1 << 40  # positions of the literal rule stay small


class Rule(Protocol):
    """A verdict over one backend's outcomes."""

    def successes(self, count: int) -> bool:
        """Take `count` successes in a row; True when the rule trips."""

    def failure(self) -> bool:
        """Take one failure; True when the rule trips."""

    @property
    def trips_after(self) -> int | None:
        """Successes in a row that could trip it (by completing a minimum); None when none can."""

    @property
    def quiet(self) -> bool:
        """Whether nothing speaks against the backend at the moment."""

    @property
    def level(self) -> float:
        """How near the rule is to tripping: 0 quiet, 1 tripped."""

    def describe(self) -> str:
        """The rule with its parameters, for the user."""

    def state(self) -> dict[str, Any]:
        """What must survive a restart."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a saved `state`."""


@dataclass(slots=True)
class Cusum:
    """Bernoulli CUSUM. Each failure adds log(p1/p0), each success log((1-p1)/(1-p0)) < 0."""

    p0: float = 0.0005
    p1: float = 0.002
    h: float = 9.2
    value: float = 0.0
    tripped: bool = False

    def successes(self, count: int) -> bool:
        down = math.log1p(-self.p1) - math.log1p(-self.p0)
        self.value = max(0.0, self.value + count * down)
        return self.tripped

    def failure(self) -> bool:
        self.value += math.log(self.p1 / self.p0)
        self.tripped = self.tripped or self.value >= self.h
        return self.tripped

    @property
    def trips_after(self) -> int | None:
        return None

    @property
    def quiet(self) -> bool:
        return self.value == 0.0

    @property
    def level(self) -> float:
        return 1.0 if self.tripped else min(1.0, self.value / self.h)

    def describe(self) -> str:
        in_a_row = math.ceil(self.h / math.log(self.p1 / self.p0))
        return (
            f"cusum p0={self.p0:.3%} p1={self.p1:.3%} h={self.h:g} "
            f"(trips on {in_a_row} failures in a row)"
        )

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "tripped": self.tripped}

    def restore(self, state: dict[str, Any]) -> None:
        self.value, self.tripped = float(state["value"]), bool(state["tripped"])


class Literal:
    """More than `limit` of the last `window` requests failed, judged from `minimum` on."""

    __slots__ = ("failed_at", "limit", "minimum", "position", "tripped", "window")

    def __init__(self, limit: float = 0.001, window: int = 10_000, minimum: int = 1_000) -> None:
        self.limit, self.window, self.minimum = limit, window, minimum
        self.position = 0  # requests so far
        self.failed_at: deque[int] = deque()  # positions of the failures inside the window
        self.tripped = False

    def successes(self, count: int) -> bool:
        end = self.position + count
        if self.position < self.minimum <= end:
            # Successes only lower the rate, but reaching the minimum makes it count.
            self.position = self.minimum
            self.forget()
            self.judge(self.minimum)
        self.position = end
        self.forget()
        return self.tripped

    def failure(self) -> bool:
        self.position += 1
        self.failed_at.append(self.position)
        self.forget()
        self.judge(self.position)
        return self.tripped

    def forget(self) -> None:
        """Drop failures that left the window; keep positions small."""
        while self.failed_at and self.failed_at[0] <= self.position - self.window:
            self.failed_at.popleft()
        if self.position > REBASE:
            shift = self.position - max(self.window, self.minimum)
            self.position -= shift
            self.failed_at = deque(at - shift for at in self.failed_at)

    def judge(self, position: int) -> None:
        """Trip when the share of failures in the window ending at `position` is too high."""
        if position >= self.minimum:
            share = len(self.failed_at) / min(position, self.window)
            self.tripped = self.tripped or share > self.limit

    @property
    def trips_after(self) -> int | None:
        return self.minimum - self.position if self.position < self.minimum else None

    @property
    def quiet(self) -> bool:
        return not self.failed_at

    @property
    def level(self) -> float:
        if self.tripped:
            return 1.0
        if self.position < self.minimum:
            return 0.0
        return min(1.0, len(self.failed_at) / min(self.position, self.window) / self.limit)

    def describe(self) -> str:
        return (
            f"literal: more than {self.limit:.3%} of the last {self.window} requests, "
            f"from {self.minimum} requests on"
        )

    def state(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "failed_at": list(self.failed_at),
            "tripped": self.tripped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.position, self.tripped = int(state["position"]), bool(state["tripped"])
        self.failed_at = deque(int(at) for at in state["failed_at"])


def add_logs(logs: list[float]) -> float:
    """The logarithm of a sum of numbers given by their logarithms."""
    top = max(logs)
    return top + math.log(sum(math.exp(value - top) for value in logs))


@functools.cache
def terms_of(limit: float) -> tuple[tuple[float, float], ...]:
    """What a failure and a success add to the logarithm of each alternative's ratio."""
    low, high = math.log(limit * 1.5), math.log(0.999)
    rates = [math.exp(low + (high - low) * i / (GRID - 1)) for i in range(GRID)]
    return tuple((math.log(rate / limit), math.log1p(-rate) - math.log1p(-limit)) for rate in rates)


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
        # A success only lowers the ratio: nothing to judge, and the level may be a little old.
        before, self.requests = self.requests, self.requests + count
        mark = self.requests // REFRESH * REFRESH
        if self.failures and mark > before:
            self.log_value = self.evidence(mark)
        return self.tripped

    def failure(self) -> bool:
        self.requests += 1
        self.failures += 1
        self.log_value = self.evidence(self.requests)
        enough = self.failures >= LEAST and self.log_value >= -math.log(self.alpha)
        self.tripped = self.tripped or enough
        share = (1 - FIRST) / (self.failures * (self.failures + 1))
        if len(self.starts) == BETS:
            worth = [self.worth(start, self.requests) for start in self.starts]
            del self.starts[worth.index(min(worth))]
        self.starts.append((self.requests, self.failures, share))
        return self.tripped

    def evidence(self, requests: int) -> float:
        """Logarithm of what all bets are worth after `requests`; 0 is what was placed."""
        waiting = math.log((1 - FIRST) / (self.failures + 1))  # what is not placed yet
        return add_logs([waiting, *(self.worth(start, requests) for start in self.starts)])

    def worth(self, start: tuple[int, int, float], requests: int) -> float:
        """Logarithm of what one bet is worth after `requests`."""
        since, failures, share = start
        return math.log(share) + self.ratio(max(0, requests - since), self.failures - failures)

    def ratio(self, requests: int, failures: int) -> float:
        """Logarithm of the mixture's likelihood ratio of one bet."""
        passed = max(0, requests - failures)
        return add_logs([failures * up + passed * down for up, down in self.terms]) - math.log(GRID)

    @property
    def trips_after(self) -> int | None:
        return None

    @property
    def quiet(self) -> bool:
        return self.log_value <= 0.0

    @property
    def level(self) -> float:
        return 1.0 if self.tripped else min(1.0, max(0.0, self.log_value / -math.log(self.alpha)))

    def describe(self) -> str:
        return f"eprocess against {self.limit:.3%}, false alarms at most {self.alpha:.1%} for ever"

    def state(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "failures": self.failures,
            "starts": list(self.starts),
            "log_value": self.log_value,
            "tripped": self.tripped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.requests, self.failures = int(state["requests"]), int(state["failures"])
        self.starts = [(int(at), int(failed), share) for at, failed, share in state["starts"]]
        self.log_value, self.tripped = float(state["log_value"]), bool(state["tripped"])
