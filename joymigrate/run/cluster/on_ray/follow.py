"""Waits for jobs on Ray and passes their output on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from joymigrate.run.cluster.on_ray import connect

POLL_S = 0.3
OVER = ("done", "failed", "cancelled")


def to_the_end(
    ray: Any, captain: Any, names: Sequence[str], talk: Callable[[list[str]], None]
) -> Any:
    """Poll until all named jobs are over or can never start; returns the last status."""
    told: dict[tuple[str, int], int] = {}
    waits: dict[str, str] = {}
    while True:
        answer = connect.ask(ray, captain.status.remote(list(names)))
        for row in answer["jobs"]:
            if row["state"] == "waiting" and waits.get(row["job"]) != row["reason"]:
                waits[row["job"]] = row["reason"]
                talk([f"{row['job']} waits: {row['reason']}"])
        for name in names:
            pods = connect.ask(ray, captain.logs.remote(name, 2000))
            for rank, lines in enumerate(pods):
                new = lines[told.get((name, rank), 0) :]
                told[name, rank] = max(len(lines), told.get((name, rank), 0))
                talk([f"{name}[{rank}] {line}" for line in new])
        stuck = [r for r in answer["jobs"] if r["state"] == "waiting" and r["permanent"]]
        if all(row["state"] in OVER or row in stuck for row in answer["jobs"]):
            return answer
        time.sleep(POLL_S)
