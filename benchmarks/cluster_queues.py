"""Queues on a ring cluster: broken limits, served claims, useless and excessive evictions.

    python -m benchmarks.cluster_queues TRACE.csv [--nodes 52]

A Philly trace on nodes of two rings of four; its ten virtual clusters become five owners with a MIN
(half the cluster together) and five guests that live on what is lent. Every job that a MIN covers
and an otherwise empty cluster could place must start in the cycle in which it arrives.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from joymigrate.run.cluster import inventory, jobs, outcome, traces
from joymigrate.run.cluster.queues import queue_of
from joymigrate.run.cluster.simulate import simulate

KIND = "ascend-910-8"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", type=int, default=52)
    parser.add_argument("--policy", default="topology")
    options = parser.parse_args()
    item = {"name": "n", "kind": KIND, "count": options.nodes, "per_leaf": 8}
    cluster = inventory.from_data({"nodes": [item]})
    trace = traces.read(options.trace, "philly")
    names = sorted({arrival.job.queue for arrival in trace.arrivals})
    share = options.nodes * 8 // 2 // 5
    items = [
        {"name": name, "max": options.nodes * 4, **({"min": share} if i % 2 == 0 else {})}
        for i, name in enumerate(names)
    ]
    read = jobs.read_items({"jobs": [], "queues": items}, "benchmark").queues
    queues = [queue_of(item) for item in read]
    on_rings = tuple(
        replace(
            arrival,
            job=replace(
                arrival.job,
                tasks=tuple(replace(task, kinds=(KIND,)) for task in arrival.job.tasks),
            ),
        )
        for arrival in trace.arrivals
    )
    run = simulate(cluster, traces.JobTrace(on_rings), options.policy, queues=queues)
    data = outcome.simulation_data(run)
    data["unplaced"] = len(run.unplaced)
    print(json.dumps(data, indent=2))


if __name__ == "__main__":
    main()
