"""What the scheduler keeps: waiting and running jobs, held cards, and an operator's settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.jobs import Job
from joymigrate.run.cluster.state import Ints, Placement

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator may choose; times in seconds.

    `patience`: after it a waiting job goes first. `hold`: keep cards for the first job that fits
    nowhere; where nobody knows when running jobs end, only after `hold_blind_after`.
    """

    patience: float = 7 * 86400.0
    hold: bool = True
    hold_blind_after: float = 3600.0


@dataclass(slots=True, eq=False)
class Entry:
    """A waiting job: its number of submission and since when it waits."""

    number: int
    job: Job
    since: float
    group: int

    def __lt__(self, other: Entry) -> bool:
        return self.number < other.number


@dataclass(slots=True, eq=False)
class Running:
    """A running job: what it holds and when it is expected to end."""

    entry: Entry
    placement: Placement
    use: dict[int, float]
    started: float
    ends: float


@dataclass(slots=True, eq=False)
class CardHold:
    """Cards that are kept for the first job that fits nowhere on its nodes, and when it will fit.

    `nodes` flags every node that could take a pod of the job: two holds never share one.
    """

    entry: Entry
    mask: Ints
    until: float
    nodes: NDArray[np.bool_]
