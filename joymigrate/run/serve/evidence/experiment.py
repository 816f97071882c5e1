"""The ramp as an experiment: do live answers of the two arms differ in what can be seen of each?

Which arm a client gets is drawn by a hash, so among all answers with some property (ended by
length, a text that loops, much longer than usual) the standby's share is its weight, unless the
standby makes that property more or less likely. That is tested without any assumption about the
clients or the time of day: for each property a mixture of odds against the tolerable ones, whose
false alarms stay below `ALPHA` however often one looks (Ville's inequality). One client counts once
for each property, and no property is judged by fewer than `LEAST` answers. Pure.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joymigrate.run.serve.evidence.bounds import log_evidence, requests_needed, upper_bound

ALPHA = 0.005  # shared by all properties
SHARES = 32  # of it for one property: a few of many kinds
TOLERABLE = 1.5  # odds by which another chip may differ
ODDS = (3.0, 8.0, 25.0, 100.0)  # what is looked for
LEAST = 4  # answers with a property before it is judged
PROPERTIES = 256
CLIENTS = 50_000
PAST = 400  # answers of one kind by which a usual length and time are known
KNOWN = 40  # from so many on
# Share of the standby's answers, beyond that of the primary's own, that may take `slowdown` times
# as long as the primary's 99th percentile, and the primary's answers from which on it is known: it
# is the second slowest of 50 to 200, so that one answer of a cold start moves nothing. Beyond it
# lie 4 % of an equal standby's, and beyond three times it a third of them even where a tail falls
# as slowly as 1 / time.
TAIL_SHARE, TAIL_KNOWN = 0.02, 50


@dataclass(slots=True)
class Test:
    """The evidence that one property is the standby's: one logarithm for each of `ODDS`."""

    count: int = 0
    ours: int = 0
    logs: list[float] = field(default_factory=lambda: [0.0] * len(ODDS))

    def add(self, ours: bool, share: float) -> None:
        """One more answer with the property; `share` of all went to the standby."""
        self.count += 1
        self.ours += ours
        at_most = weigh(share, TOLERABLE)
        for place, odds in enumerate(ODDS):
            looked_for = weigh(share, TOLERABLE * odds)
            ratio = looked_for / at_most if ours else (1 - looked_for) / (1 - at_most)
            self.logs[place] += math.log(ratio)

    @property
    def level(self) -> float:
        """How near it is to its decision: 1 is there."""
        if self.count < LEAST:
            return 0.0
        value = float(np.logaddexp.reduce(self.logs)) - math.log(len(ODDS))
        return min(1.0, max(0.0, value / -math.log(ALPHA / SHARES)))


def weigh(share: float, odds: float) -> float:
    """The standby's share of answers with a property that is so many times likelier there."""
    return share * odds / (share * odds + 1 - share)


@dataclass(slots=True)
class Usual:
    """Sorted numbers of the last answers of one kind; `waiting` are times of the standby that
    nobody can judge yet."""

    order: deque[float] = field(default_factory=deque)
    ranks: list[float] = field(default_factory=list)
    waiting: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))

    def add(self, value: float) -> None:
        """Take one more."""
        self.order.append(value)
        insort(self.ranks, value)
        if len(self.order) > PAST:
            self.ranks.remove(self.order.popleft())

    def quantile(self, share: float, least: int = KNOWN) -> float | None:
        """None while fewer than `least` are known."""
        return self.ranks[int(share * (len(self.ranks) - 1))] if len(self.ranks) >= least else None


@dataclass(slots=True)
class Experiment:
    """All properties of one attempt at a rollout."""

    slowdown: float = 3.0
    tests: dict[str, Test] = field(default_factory=dict)
    clients: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)
    usual: dict[str, Usual] = field(default_factory=dict)
    timed: int = 0  # answers of the standby whose kind has a usual time
    late: int = 0  # of them, far slower than the primary's slowest hundredth
    primary_timed: int = 0  # all of the primary's, so that a few never make a large share
    primary_late: int = 0  # of them, as `late`: a machine that stands still is both's

    def add(
        self, ours: bool, share: float, who: str, kind: str, seen: Mapping[str, bool | float]
    ) -> list[str]:
        """Take one live answer; the properties whose test trips with it. `share`: the standby's
        of the traffic, 0 to 1. A number of `seen` is judged by the usual ones of its kind."""
        found = []
        for name, value in seen.items():
            label = f"{name} ({kind})"
            if isinstance(value, bool):
                present = [label] if value else []
            else:
                present = self.unusual(name, label, value, ours)
            found += [one for one in present if self.count(one, ours, share, who)]
        return found

    def unusual(self, name: str, label: str, value: float, ours: bool) -> list[str]:
        """In which way a number is far from the primary's usual ones."""
        usual = self.usual.setdefault(label, Usual())
        low, high = usual.quantile(0.1), usual.quantile(0.9)
        if name == "seconds" and self.slowdown:
            self.time(usual, value, ours)
        if not ours:
            usual.add(value)
        if low is None or high is None:
            return []
        if name.startswith("seconds"):
            return [f"{label} far above the usual"] if value > self.slowdown * high else []
        found = [f"{label} below the usual"] if value < low else []
        return found + ([f"{label} above the usual"] if value > high else [])

    def time(self, usual: Usual, seconds: float, ours: bool) -> None:
        """Count a late answer. Those of the standby wait until the primary's slowest are known: to
        what it has said already, that limit is as independent as to what comes."""
        slowest = usual.quantile(0.99, TAIL_KNOWN)
        if not ours:
            self.primary_timed += 1
            self.primary_late += slowest is not None and seconds > self.slowdown * slowest
            return
        usual.waiting.append(seconds)
        if slowest is None:
            return
        self.timed += len(usual.waiting)
        self.late += sum(one > self.slowdown * slowest for one in usual.waiting)
        usual.waiting.clear()

    def count(self, label: str, ours: bool, share: float, who: str) -> bool:
        """Whether the test of a property trips with one more answer."""
        if not 0.0 < share < 1.0:
            return False
        if who:
            if (label, who) in self.clients:
                return False
            self.clients[label, who] = None
            if len(self.clients) > CLIENTS:
                self.clients.popitem(last=False)
        test = self.tests.get(label)
        if test is None:
            if len(self.tests) >= PROPERTIES:
                return False
            test = self.tests[label] = Test()
        before = test.level
        test.add(ours, share)
        return before < 1.0 <= test.level

    def describe(self, label: str) -> str:
        """How a property stands, in words."""
        test = self.tests[label]
        return f"{test.ours} of {test.count} live answers with '{label}' are the standby's"

    @property
    def level(self) -> float:
        """How near the nearest test is to its decision."""
        return max((test.level for test in self.tests.values()), default=0.0)

    @property
    def tail_limit(self) -> float:
        """The share of far slower answers that is too much: so much more than the primary has."""
        own = self.primary_late / self.primary_timed if self.primary_timed else 0.0
        return round(TAIL_SHARE + own, 3)

    def missing(self, confidence: float) -> str:
        """What still lacks to show that the standby's slow answers are few; empty when nothing, or
        when no usual time is known."""
        if not self.timed:
            return ""
        limit = self.tail_limit
        if log_evidence(self.late, self.timed, limit) >= -math.log1p(-confidence):
            return ""
        needed = requests_needed(self.late, limit, confidence)
        return (
            f"{self.timed} of {needed} timed answers to show that less than {limit:.1%} are "
            f"far slower than the primary's slowest ({self.late} are)"
        )

    def proof(self, confidence: float) -> str:
        """The share of slow answers with its bound, for the history; empty: none was timed."""
        bound = upper_bound(self.late, self.timed, confidence)
        seen = f"{self.late} of {self.timed} are far slower than the primary's slowest"
        return f"; {seen}, at most {bound:.1%}" if self.timed else ""

    def state(self) -> dict[str, Any]:
        """What must survive a restart."""
        tests = {name: [test.count, test.ours, test.logs] for name, test in self.tests.items()}
        times = [self.timed, self.late, self.primary_timed, self.primary_late]
        return {"tests": tests, "times": times}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up a saved `state`."""
        times = (*saved.get("times", ()), 0, 0, 0, 0)  # older states have none of the primary
        self.timed, self.late, self.primary_timed, self.primary_late = times[:4]
        for name, (count, ours, logs) in list(saved.get("tests", {}).items())[:PROPERTIES]:
            self.tests[name] = Test(int(count), int(ours), [float(one) for one in logs])
