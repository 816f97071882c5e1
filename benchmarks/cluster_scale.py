"""What an event costs as the cluster grows, and what cutting the cluster into shards saves.

    python -m benchmarks.cluster_scale --cards 10000 100000 --jobs 100000
    python -m benchmarks.cluster_scale --cards 100000 --jobs 1000000 --shards 10
    python -m benchmarks.cluster_scale --cards 100000 --jobs 1000000 --every 200000

Jobs are those of `cluster_simulate`: `--load` of the cards is offered. With `--shards` each is a
scheduler of its own over its part of the nodes, and a job goes to the shard whose work per card
is done first by the stated run times (a router needs to know no more). An event is a job's arrival
or its end; times are process CPU time of the decisions and of the playing. `--only` plays some of
the shards, for machines where all of them take too long at once. `--every` says after so many
events what they took and how large the scheduler's state is (pickled, without what never changes).
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import time
from collections.abc import Sequence

from benchmarks.cluster_simulate import draw
from joymigrate.run.cluster import inventory, policies
from joymigrate.run.cluster.demand import typical
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import Action
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.simulate import SimulationRun
from joymigrate.run.cluster.traces import Arrival

WIDTH = 8  # cards of a server


def route(arrivals: Sequence[Arrival], shards: int, cards: float) -> list[list[Arrival]]:
    """Each job to the shard that has least work left per card when it comes."""
    left = [0.0] * shards  # seconds until a shard's work is done
    at = 0.0
    parts: list[list[Arrival]] = [[] for _ in range(shards)]
    for one in arrivals:
        left = [max(0.0, work - (one.at - at)) for work in left]
        at = one.at
        chosen = min(range(shards), key=left.__getitem__)
        left[chosen] += one.seconds * one.job.cards / cards
        parts[chosen].append(one)
    return parts


class Watched(SimulationRun):
    """A simulation that says on its way what events take and how large the state is."""

    def __init__(self, scheduler: Scheduler, arrivals: list[Arrival], every: int) -> None:
        super().__init__(scheduler, arrivals, None)
        self.every, self.moments, self.events, self.began = every, 0, 0, time.process_time()

    def _follow(self, actions: Sequence[Action], now: float) -> None:
        super()._follow(actions, now)
        self.moments += 1
        if self.every and self.moments % self.every == 0:
            self.tell()

    def tell(self) -> None:
        """One line about the events since the last one."""
        run, seconds = self.scheduler, time.process_time() - self.began
        held = (run.running, run.waiting, run.allocations, run.gate, run.history, run.quotas)
        row = {
            "moments": self.moments, "ms_per_moment": round(1000 * seconds / self.every, 4),
            "running": len(run.running), "waiting": len(run.waiting),
            "state_kib": len(pickle.dumps(held)) // 1024,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        self.began = time.process_time()


def play(cards: int, arrivals: Sequence[Arrival], every: int = 0) -> dict[str, float]:
    """One scheduler over so many cards."""
    item = {"name": "n", "kind": "gpu-8", "count": cards // WIDTH, "per_leaf": 32}
    cluster = inventory.from_data({"nodes": [item]})
    began, demand = time.process_time(), typical(one.job for one in arrivals)
    policy = policies.get("topology", demand)
    scheduler = Scheduler(cluster, (), policy, {}, ClusterSettings())
    run = Watched(scheduler, list(arrivals), every).play("topology", 0, demand)
    cpu = time.process_time() - began
    return {
        "jobs": len(arrivals),
        "cpu_s": round(cpu, 1),
        "ms_per_event": round(1000 * cpu / (2 * len(arrivals)), 4),
        "wait_mean_s": round(run.wait_mean_h * 3600, 2),
        "allocation_pct": round(run.allocation_pct, 2),
        "unplaced": len(run.unplaced),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of shards, from 0")
    parser.add_argument("--every", type=int, default=0, help="events between two lines")
    options = parser.parse_args()
    for cards in options.cards:
        trace = draw(options.jobs, options.load, cards, 0)
        each = cards // options.shards
        parts = route(trace.arrivals, options.shards, each)
        rows = []
        for number in options.only or range(options.shards):
            rows.append(play(each, parts[number], options.every))
            print(json.dumps({"cards": cards, "shard": number, **rows[-1]}), flush=True)
        jobs = sum(row["jobs"] for row in rows)
        cpu = sum(row["cpu_s"] for row in rows)
        wait = sum(row["wait_mean_s"] * row["jobs"] for row in rows) / max(jobs, 1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        total = {"cards": cards, "shards": options.shards, "jobs": jobs, "cpu_s": round(cpu, 1)}
        total |= {"ms_per_event": round(1000 * cpu / max(2 * jobs, 1), 4)}
        print(json.dumps({**total, "wait_mean_s": round(wait, 2), "peak_mib": peak}), flush=True)


if __name__ == "__main__":
    main()
