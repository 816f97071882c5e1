"""What the scheduler keeps: waiting and running jobs, held cards, and an operator's settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.state import Ints, Placement

NEVER = float("inf")
ASSUMED_MINUTES = 24 * 60.0  # run time of a job that states none, where an order needs one
SHORTEST_S = 60.0  # run times below this count as this
ORDERS = ("response", "submission")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What an operator may choose; times in seconds.

    `order` is that of jobs of one class: "response" takes the one first that waits longest for the
    square of its run time, so that short jobs pass long ones and none starves; "submission" takes
    them as they came. (Highest response ratio next, Brinch Hansen 1971, divides by the run time
    itself; on Philly that serves queues less alike.) `patience`: after it a waiting job goes
    first, where no run time is stated or the order is that of submission.
    `hold`: keep cards for the first jobs that fit nowhere, one for every five nodes that they may
    use and at most `holds` (with one alone, wide jobs wait behind a stream of small ones; with one
    for every other node nothing new gets through); where nobody knows when running jobs end, only
    after `hold_blind_after`.
    `predict`: jobs that state no run time are ordered, and let go before held cards, by what their
    like has run.
    `elastic`: jobs with `min_pods` run on fewer pods too; saving and starting anew is taken to cost
    `resize_cost`.
    """

    order: str = "response"
    patience: float = 7 * 86400.0
    hold: bool = True
    holds: int = 5
    hold_blind_after: float = 3600.0
    overcommit: bool = False
    predict: bool = True
    elastic: bool = True
    resize_cost: float = 60.0


@dataclass(slots=True, eq=False)
class WaitingJob:
    """A waiting job: its number of submission, since when it waits, and when it was submitted."""

    number: int
    job: GangJob
    since: float
    group: int
    submitted: float
    promised: bool = False  # cards were held for it: it stays the first of its class
    expected_s: float | None = None  # what its like has run, where it states no run time
    high_s: float | None = None  # what nine of ten of its like did not exceed
    whole: GangJob | None = None  # as it was submitted, while an elastic job runs in another size
    possible: GangJob | None = None  # the job as which it was found not to be refused for good

    @property
    def run_s(self) -> float:
        """Seconds that it runs, as orders count them: a minute or more, a day if nobody knows."""
        if self.job.minutes is not None:
            return max(self.job.minutes * 60, SHORTEST_S)
        return max(self.expected_s or ASSUMED_MINUTES * 60, SHORTEST_S)

    @property
    def bound_s(self) -> float | None:
        """Seconds that it does not run longer than: stated, or what most of its like kept to."""
        return self.high_s if self.job.minutes is None else self.job.minutes * 60

    def urgency(self, now: float) -> float:
        """Its wait by the square of its run time; the largest goes first."""
        return NEVER if self.promised else (now - self.submitted) / self.run_s**2

    def __lt__(self, other: WaitingJob) -> bool:
        return self.number < other.number


@dataclass(slots=True, eq=False)
class RunningJob:
    """A running job: what it holds and when it says that it ends.

    `expected` is that time, or where it says none, when most of its like had ended.
    """

    entry: WaitingJob
    placement: Placement
    use: dict[int, float]
    started: float
    ends: float
    expected: float


def spare_pods(run: RunningJob) -> int:
    """Pods that a running job can do without."""
    whole = run.entry.whole or run.entry.job
    return max(0, len(run.placement) - whole.min_pods) if whole.elastic else 0


@dataclass(slots=True, eq=False)
class CardHold:
    """Cards that are kept for the first job that fits nowhere on its nodes, and when it will fit.

    `nodes` flags every node that could take a pod of the job; two holds never share a card.
    """

    entry: WaitingJob
    mask: Ints
    until: float
    nodes: NDArray[np.bool_]
