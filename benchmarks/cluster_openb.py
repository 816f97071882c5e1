"""Allocation on mixes of openb's pods that no weight was searched on, beside published policies.

    python -m benchmarks.cluster_openb NODES.csv PODS.csv [--seeds 3] [--first 100]

Each mix draws pods of the default trace again, with one class of them more often: those of several
cards, shares of a card, without cards, of a named model. `gradient` is the fragmentation gradient
as published (USENIX ATC 2023), `binpack` the fullest node. Mean allocation in percent when 130 % of
the cards are asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from joymigrate.run.cluster import inventory, traces
from joymigrate.run.cluster.arrival import offer
from joymigrate.run.cluster.jobs import PodGroup
from joymigrate.run.cluster.traces import Arrival, JobTrace

POLICIES = ("fragmentation", "gradient", "binpack")
Class = Callable[[PodGroup], bool]
MIXES: dict[str, tuple[Class, float]] = {
    "several cards x2": (lambda pod: pod.cards > 1, 2.0),
    "several cards x0.5": (lambda pod: pod.cards > 1, 0.5),
    "shares x2": (lambda pod: pod.milli > 0, 2.0),
    "shares x0.3": (lambda pod: pod.milli > 0, 0.3),
    "without cards x3": (lambda pod: not pod.card_share, 3.0),
    "named models x4": (lambda pod: bool(pod.models), 4.0),
}


def drawn(arrivals: Sequence[Arrival], chosen: Class, factor: float, seed: int) -> JobTrace:
    """As many pods again, those of a class `factor` times as often."""
    weights = np.array([factor if chosen(one.job.tasks[0]) else 1.0 for one in arrivals])
    rng = np.random.default_rng(seed)
    numbers = rng.choice(len(arrivals), len(arrivals), p=weights / weights.sum())
    pods = [arrivals[int(number)] for number in numbers]
    return JobTrace(tuple(replace(p, job=replace(p.job, name=f"p{i}")) for i, p in enumerate(pods)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=Path)
    parser.add_argument("pods", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--only", nargs="+", help="mixes by the beginning of their name")
    options = parser.parse_args()
    cluster = inventory.load(options.nodes)
    arrivals = traces.read(options.pods, "openb").arrivals
    for name, (chosen, factor) in MIXES.items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for seed in range(options.first, options.first + options.seeds):
            trace = drawn(arrivals, chosen, factor, seed)
            for policy in POLICIES:
                run = offer(cluster, trace, policy, 1.3, seed)
                found[policy].append(run.allocation_pct)
        means = {policy: round(float(np.mean(got)), 2) for policy, got in found.items()}
        print(json.dumps({"mix": name, "seeds": options.seeds, **means}), flush=True)


if __name__ == "__main__":
    main()
