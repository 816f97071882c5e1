"""How often two jobs that cross spines share a leaf switch, which placement does not track.

    python -m benchmarks.cluster_spines TRACE.csv [--nodes 52] [--per-leaf 4]

A Philly trace on nodes of eight cards, two leaves to a spine. Counted are the starts of jobs over
several nodes, of those that cross spines, and of those of them that land on a leaf where another
crossing job runs.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from joymigrate.run.cluster import inventory, policies, traces
from joymigrate.run.cluster.demand import typical
from joymigrate.run.cluster.events import Start
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.simulate import SimulationRun
from joymigrate.run.cluster.state import Placement


class Counting(SimulationRun):
    """A simulation that looks at every start."""

    def __init__(self, scheduler: Scheduler, arrivals: list[traces.Arrival]) -> None:
        super().__init__(scheduler, arrivals, None)
        self.starts: Counter[str] = Counter()

    def _begin(self, action: Start, now: float) -> None:
        super()._begin(action, now)
        self.starts["all"] += 1
        self.starts["over several nodes"] += len({g.node for g in action.placement}) > 1
        if not self.crosses(action.placement):
            return
        self.starts["over several spines"] += 1
        others = [
            run.placement
            for name, run in self.scheduler.running.items()
            if name != action.job.name and self.crosses(run.placement)
        ]
        mine = self.leaves(action.placement)
        self.starts["on a leaf with another of them"] += any(
            mine & self.leaves(placement) for placement in others
        )

    def crosses(self, placement: Placement) -> bool:
        return len({int(self.scheduler.state.spine[grant.node]) for grant in placement}) > 1

    def leaves(self, placement: Placement) -> set[int]:
        return {int(self.scheduler.state.leaf[grant.node]) for grant in placement}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", type=int, default=52)
    parser.add_argument("--per-leaf", type=int, default=4)
    options = parser.parse_args()
    item = {"name": "n", "kind": "gpu-8", "count": options.nodes, "leaves_per_spine": 2}
    cluster = inventory.from_data({"nodes": [{**item, "per_leaf": options.per_leaf}]})
    trace = traces.read(options.trace, "philly")
    demand = typical(arrival.job for arrival in trace.arrivals)
    scheduler = Scheduler(cluster, trace.queues, policies.get("topology", demand))
    run = Counting(scheduler, list(trace.arrivals))
    played = run.play("topology", 0, demand)
    print(json.dumps({"starts": run.starts, "wait_mean_h": round(played.wait_mean_h, 2)}, indent=2))


if __name__ == "__main__":
    main()
