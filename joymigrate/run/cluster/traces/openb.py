"""The openb pod lists (2023 GPU cluster): one pod per row, shares of cards in thousandths."""

from __future__ import annotations

from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.cluster.inventory import csv_count, rows
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.traces import Arrival, JobTrace

NEEDED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
WHOLE = 1000


def read(path: Path) -> JobTrace:
    """Pods as jobs of one pod; lists without creation times are undated."""
    arrivals: list[Arrival] = []
    undated = False
    tasks: dict[PodGroup, PodGroup] = {}
    for line, row in enumerate(rows(path.read_text("utf-8-sig"), str(path), NEEDED), start=2):
        values = {key: csv_count(row, key, str(path), line) for key in NEEDED[1:]}
        cards, milli = values["num_gpu"], values["gpu_milli"]
        if cards > 1 and milli < WHOLE:
            raise JoyError(
                f"{cards} cards of {milli} thousandths each; only one card can be shared",
                where=f"{path}:{line}",
            )
        shared = cards == 1 and milli < WHOLE
        task = PodGroup(
            pods=1,
            cards=0 if shared else cards,
            milli=milli if shared else 0,
            models=tuple(filter(None, (row.get("gpu_spec") or "").split("|"))),
            cpu_milli=values["cpu_milli"],
            memory_mib=values["memory_mib"],
        )
        task = tasks.setdefault(task, task)
        began, start, end = (
            csv_count(row, key, str(path), line) if row.get(key) else 0
            for key in ("creation_time", "scheduled_time", "deletion_time")
        )
        undated = undated or "creation_time" not in row
        seconds = max(0, end - (start or began))
        job = GangJob(name=row["name"], tasks=(task,), minutes=seconds / 60)
        arrivals.append(Arrival(job, began, seconds))
    if not undated:
        arrivals.sort(key=lambda arrival: arrival.at)
    return JobTrace(tuple(arrivals), undated=undated)
