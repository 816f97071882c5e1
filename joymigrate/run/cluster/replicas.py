"""Replicas of a service as jobs on a live cluster: how many are wanted, who starts, who ends.

Pure: the shell reads the gateway's counter and the clock, and carries the names out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from joymigrate.errors import JoyError
from joymigrate.run.cluster.autoscale import COUNTER, Autoscaler, Load, ScalingRule
from joymigrate.run.cluster.forecast import RollingForecast
from joymigrate.run.cluster.jobs import GangJob

LINE = re.compile(rf"^{COUNTER}(?:\{{[^}}]*\}})? +(\S+)", re.MULTILINE)


def requests_so_far(text: str, where: str) -> float:
    """All requests that a page of metrics has counted; `JoyError` where it counts none."""
    found = LINE.findall(text)
    if not found:
        raise JoyError(
            f"no {COUNTER} among the metrics", where=where, help="the gateway's /metrics"
        )
    return sum(float(number) for number in found)


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """What is to be done: replicas to start and to stop, and why so many are wanted."""

    wanted: int
    rate: float
    ahead: float
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


class ServedReplicas:
    """State machine: `on(now, total, live)` says which replicas start and which end.

    The first look knows no rate yet: it takes over the replicas that are there. With a `forecast`
    replicas come before the load; its rows are `step_s` seconds.
    """

    def __init__(
        self,
        name: str,
        rule: ScalingRule,
        forecast: RollingForecast | None = None,
        step_s: float = 0.0,
    ) -> None:
        self.name = name
        self.scaler = Autoscaler(rule)
        self.forecast, self.step_s = forecast, step_s
        self.last: tuple[float, float] | None = None
        self.row: list[float] = [0.0, 0.0]  # requests and seconds of the row that is going on

    def on(self, now: float, total: float, live: Iterable[str]) -> ReplicaChange:
        """Decide at `now` seconds from the counter `total` and the names of live replicas."""
        there = sorted(number for one in live if (number := number_of(one, self.name)) is not None)
        if self.last is None:
            self.scaler.take_over(now, len(there))
        rate = self._rate(now, total)
        ahead = self.forecast.expected() if self.forecast else 0.0
        wanted = self.scaler.on(Load(now, rate), ahead)
        free = (number for number in range(wanted + len(there)) if number not in there)
        more = [f"{self.name}-{next(free)}" for _ in range(wanted - len(there))]
        less = [f"{self.name}-{number}" for number in there[wanted:]]
        return ReplicaChange(wanted, rate, ahead, tuple(more), tuple(less))

    def _rate(self, now: float, total: float) -> float:
        """Requests per second since the last look; a counter that fell has begun anew."""
        if self.last is None or now <= self.last[0]:
            self.last = (now, total)
            return 0.0
        at, before = self.last
        count = total - before if total >= before else total
        self.last = (now, total)
        self.row = [self.row[0] + count, self.row[1] + now - at]
        if self.forecast and self.row[1] >= self.step_s:
            mean = self.row[0] / self.row[1]
            for _ in range(max(1, round(self.row[1] / self.step_s))):
                self.forecast.add(mean)
            self.row = [0.0, 0.0]
        return count / (now - at)


def number_of(job: str, name: str) -> int | None:
    """The number of a service's replica, None for any other job."""
    head, _, number = job.rpartition("-")
    return int(number) if head == name and number.isdigit() else None


def replica(job: GangJob, name: str) -> GangJob:
    """The job of one replica; its number is in its environment."""
    number = name.rpartition("-")[2]
    return replace(job, name=name, environment={**job.environment, "JOYMIGRATE_REPLICA": number})
