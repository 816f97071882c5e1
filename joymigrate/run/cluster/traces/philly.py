"""The Philly lists of the Gavel project: one training job per row, its virtual cluster as queue.

Columns: vc, arrival_s, num_gpus, duration_v100_s. Up to 8 cards are one pod; more are pods of 8
(or of the largest divisor of the number below 8).
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.cluster.inventory import csv_count, rows
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.traces import Arrival, JobTrace

NEEDED = ("vc", "arrival_s", "num_gpus", "duration_v100_s")
POD = 8  # cards of the largest pod


def read(path: Path) -> JobTrace:
    """Jobs by arrival; each virtual cluster is a queue without limits."""
    arrivals: list[Arrival] = []
    tasks: dict[int, PodGroup] = {}
    for line, row in enumerate(rows(path.read_text("utf-8-sig"), str(path), NEEDED), start=2):
        total = csv_count(row, "num_gpus", str(path), line)
        if total < 1:
            raise JoyError(f"num_gpus is {row['num_gpus']!r}", where=f"{path}:{line}")
        if total not in tasks:
            per_pod = max(k for k in range(1, POD + 1) if total % k == 0)
            tasks[total] = PodGroup(pods=total // per_pod, cards=per_pod)
        try:
            at, seconds = float(row["arrival_s"]), float(row["duration_v100_s"])
        except ValueError as error:
            raise JoyError(f"not a number: {error}", where=f"{path}:{line}") from error
        if not (isfinite(at) and isfinite(seconds) and seconds >= 0):
            raise JoyError(
                f"arrival_s {row['arrival_s']}, duration_v100_s {row['duration_v100_s']}: "
                "seconds are finite, and a run time is not negative",
                where=f"{path}:{line}",
            )
        name = f"philly-{line - 2}"
        job = GangJob(name=name, tasks=(tasks[total],), queue=row["vc"], minutes=seconds / 60)
        arrivals.append(Arrival(job, at, seconds))
    arrivals.sort(key=lambda arrival: arrival.at)
    return JobTrace(tuple(arrivals))
