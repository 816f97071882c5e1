"""What one event costs while many different jobs wait on a full cluster.

    python -m benchmarks.cluster_waiting [--waiting 5000] [--nodes 400] [--events 200] [--replays 1]

Every waiting job asks for something else (cards, pods, CPU, memory, run time), so that none is
decided together with another. An event is the end of a running job; what it frees goes to a
waiting one. Prints CPU milliseconds per event, their mean and what 99 of 100 do not exceed; with
`--replays` of each event's least, which others on the machine disturb little.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from joymigrate.run.cluster import inventory, jobs
from joymigrate.run.cluster.events import Ended, Start, Submitted
from joymigrate.run.cluster.scheduler import Scheduler


def draw(count: int, seed: int) -> list[jobs.GangJob]:
    """Jobs of which no two are alike."""
    rng = np.random.default_rng(seed)
    cards = rng.choice([1, 2, 4, 8], count, p=[0.5, 0.15, 0.15, 0.2])
    pods = np.where(cards == 8, rng.choice([1, 2, 4, 8], count, p=[0.7, 0.15, 0.1, 0.05]), 1)
    return [
        jobs.GangJob(
            f"j{i}",
            (jobs.PodGroup(int(pods[i]), int(cards[i]), cpu_milli=1000 + i, memory_mib=1024 + i),),
            f"q{i % 7}",
            minutes=float(rng.integers(5, 5000)),
        )
        for i in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[500, 1500, 5000])
    parser.add_argument("--nodes", type=int, default=400)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--replays", type=int, default=1)
    options = parser.parse_args()
    for waiting in options.waiting:
        size = options.nodes, waiting, options.events
        replays = [replay(*size) for _ in range(options.replays)]
        spent = np.min([times for times, _ in replays], axis=0)
        print(
            f"{replays[0][1]}, {spent.mean():.2f} ms an event, p99 {np.percentile(spent, 99):.1f}"
        )


def replay(nodes: int, waiting: int, events: int) -> tuple[list[float], str]:
    """CPU milliseconds of each event, and how things stand after them."""
    node = {"name": "n", "kind": "gpu-8", "count": nodes, "per_leaf": 8}
    cluster = inventory.from_data({"nodes": [node | {"cpu": 128, "memory_gib": 1024}]})
    scheduler = Scheduler(cluster)
    scheduler.on_all(Submitted(job, 0.0) for job in draw(nodes * 8 + waiting, 1))
    spent, starts, at = [], 0, 0.0
    for _ in range(events):
        first = min(scheduler.running.values(), key=lambda run: run.ends)
        at = max(at, first.ends)
        began = time.process_time()
        actions = scheduler.on(Ended(first.entry.job.name, at))
        spent.append(1000 * (time.process_time() - began))
        starts += sum(isinstance(action, Start) for action in actions)
    there = f"{len(scheduler.waiting)} wait, {len(scheduler.running)} run, {starts} starts"
    return spent, there


if __name__ == "__main__":
    main()
