"""A hundred thousand jobs on a recorded inventory of 10,412 cards, played to their end.

    python -m benchmarks.cluster_simulate NODES.csv [--jobs 100000] [--load 0.85]

NODES.csv is the node list of the 2026 spot cluster (columns gpu_model, gpu_capacity_num, cpu_num,
node_name). Jobs are drawn by a seed: sizes in the shares of the Philly traces, log-normal run times
around half an hour, arrivals at the rate that offers `--load` of the cards.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from joymigrate.run.cluster import inventory, jobs, outcome
from joymigrate.run.cluster.simulate import simulate
from joymigrate.run.cluster.traces import Arrival, JobTrace

# Jobs of 15 Philly virtual clusters by cards: 1, 2, 4, 8, 16, 32 and more.
SIZES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8))
SHARES = np.array([10480, 463, 2044, 1916, 200, 120, 39], dtype=float)


def draw(count: int, load: float, cards: int, seed: int) -> JobTrace:
    """`count` jobs in four queues, over the time in which they offer `load` of the cards."""
    rng = np.random.default_rng(seed)
    tasks = [jobs.PodGroup(pods, per_pod) for pods, per_pod in SIZES]
    sizes = rng.choice(len(SIZES), count, p=SHARES / SHARES.sum())
    seconds = np.clip(rng.lognormal(np.log(1800), 1.2, count), 60, 86400 * 3)
    asked = sum(tasks[int(s)].card_share * float(t) for s, t in zip(sizes, seconds, strict=True))
    at = np.sort(rng.uniform(0, asked / (load * cards), count))
    queues = rng.integers(4, size=count)
    return JobTrace(
        tuple(
            Arrival(
                jobs.GangJob(f"j{i}", (tasks[int(sizes[i])],), f"q{queues[i]}", 0, seconds[i] / 60),
                float(at[i]),
                float(seconds[i]),
            )
            for i in range(count)
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=Path)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--policy", default="topology")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cluster = inventory.load(options.nodes)
    trace = draw(options.jobs, options.load, cluster.cards, options.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    run = simulate(cluster, trace, options.policy, options.seed)
    data = outcome.simulation_data(run)
    data["unplaced"] = len(run.unplaced)
    data["wall_s"] = round(time.perf_counter() - wall, 1)
    data["cpu_s"] = round(time.process_time() - cpu, 1)
    print(json.dumps(data, indent=2))


if __name__ == "__main__":
    main()
