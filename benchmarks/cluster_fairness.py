"""How fair orders can be: Philly's jobs on one pool of cards, without nodes and places.

    python -m benchmarks.cluster_fairness philly_msr_open.csv [--cards 216 288]

Of the waiting jobs that fit the one of the largest wait / run time^power starts; `inf` takes the
shortest. It is an easier task than the cluster's (any idle card will do), not a proven bound.
"""

from __future__ import annotations

import argparse
import heapq
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster import traces
from joymigrate.run.cluster.traces import Arrival

Floats = NDArray[np.float64]
POWERS = (0.0, 1.0, 1.5, 2.0, 3.0, float("inf"))


def waits(arrivals: list[Arrival], cards: int, power: float) -> Floats:
    """How long each job waits, in seconds; jobs run to their end and start wherever cards are."""
    at = np.array([one.at for one in arrivals])
    run = np.array([one.seconds for one in arrivals])
    width = np.array([one.job.cards for one in arrivals])
    order, free, came = np.argsort(at, kind="stable"), float(cards), 0
    started, waiting = np.zeros(len(at)), list[int]()
    ends: list[tuple[float, float]] = []
    while came < len(at) or ends or waiting:
        now = min(at[order[came]] if came < len(at) else np.inf, ends[0][0] if ends else np.inf)
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
        while came < len(at) and at[order[came]] <= now:
            waiting.append(int(order[came]))
            came += 1
        line = np.array(waiting, dtype=int)
        urgency = 1 / run[line] if np.isinf(power) else (now - at[line] + 1) / run[line] ** power
        for job in map(int, line[np.argsort(-urgency, kind="stable")]):
            if free < 1:
                break
            if width[job] <= free:
                free -= width[job]
                started[job] = now
                heapq.heappush(ends, (float(now + run[job]), float(width[job])))
                waiting.remove(job)
    return started - at


def fairness(arrivals: list[Arrival], waited: Floats) -> float:
    """Jain's index of the queues' mean speed, as `cluster simulate` has it."""
    run = np.array([one.seconds for one in arrivals])
    queues = np.array([one.job.queue for one in arrivals])
    speed = run / (run + waited)
    means = np.array([speed[queues == name].mean() for name in np.unique(queues)])
    return float(means.sum() ** 2 / (len(means) * (means**2).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--cards", type=int, nargs="+", default=[216, 288])
    options = parser.parse_args()
    arrivals = list(traces.read(options.trace, "philly").arrivals)
    for cards in options.cards:
        for power in POWERS:
            waited = waits(arrivals, cards, power)
            print(
                f"{cards} cards, power {power:g}: fairness {fairness(arrivals, waited):.3f}, "
                f"mean wait {waited.mean() / 3600:.1f} h",
                flush=True,
            )


if __name__ == "__main__":
    main()
