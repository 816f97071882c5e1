"""Our own jobs: a jobs file (YAML, JSON) with `arrival_minutes`, or a CSV of the same columns.

CSV columns: name, kind, pods, cards_per_pod, queue, priority, minutes, arrival_minutes; all but
name may be left out.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.inventory import parse
from joymigrate.run.cluster.traces import Arrival, JobTrace
from joymigrate.schema import DocumentSource

NUMBERS = [
    "pods",
    "cards_per_pod",
    "priority",
    "minutes",
    "arrival_minutes",
    "arrival_s",
    "cpu_per_pod",
    "memory_gib_per_pod",
    "retries",
    "sp_block",
    "min_pods",
]


def read(path: Path) -> JobTrace:
    """Jobs by arrival; a job without `minutes` runs to the end of the simulation."""
    text = path.read_text("utf-8-sig")
    raw = from_csv(text, str(path)) if path.suffix == ".csv" else parse(text, str(path))
    source = DocumentSource(str(path), "" if path.suffix == ".csv" else text)
    file = jobs.read_items(raw, source)
    workload = jobs.of_file(file, source)
    items = {item.name: item for item in file.jobs}
    arrivals = [arrival_of(job, items[job.name]) for job in workload.jobs]
    arrivals.sort(key=lambda arrival: arrival.at)
    weights = tuple(workload.weights.items())
    return JobTrace(tuple(arrivals), workload.queues, weights)


def arrival_of(job: jobs.GangJob, item: jobs.JobItem) -> Arrival:
    """When a job comes and how long it runs; a time limit alone does not say that."""
    at = item.arrival_s + item.arrival_minutes * 60
    return Arrival(job, at, float("inf") if item.minutes is None else item.minutes * 60)


def from_csv(text: str, where: str) -> dict[str, Any]:
    """Rows of a CSV as a jobs file; numbers become numbers, empty cells are left out."""
    reader = csv.DictReader(io.StringIO(text))
    if "name" not in (reader.fieldnames or ()):
        raise JoyError("a jobs CSV has a column `name`", where=f"{where}:1")
    found = []
    for line, row in enumerate(reader, start=2):
        item: dict[str, Any] = {}
        for key, value in row.items():
            if key is None or value in ("", None):
                continue
            try:
                item[key] = as_number(value) if key in NUMBERS else value
            except ValueError as error:
                raise JoyError(f"`{key}` is {value!r}", where=f"{where}:{line}") from error
        found.append(item)
    return {"jobs": found}


def as_number(text: str) -> int | float:
    """A whole number where it is one."""
    value = float(text)
    return int(value) if value.is_integer() else value
