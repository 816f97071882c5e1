"""Gang decisions per second on 10,000 mixed cards, with queues, eviction and reasons on.

    python -m benchmarks.cluster_decisions [--decisions 20000]

The cluster is kept at about 93 % use: jobs arrive in the mix of a training cluster (1 card to 64
pods of 8), random ones end. Every decision goes through the scheduler's public `on(event)`, limits
and lending checks included, and the reason of every job that waits is put into words. Times are
process CPU time. For comparison: Kueue's own scale test admits 42.7 workloads/s (15,000 in
351.1 s, test/performance/scheduler/configs/baseline), through an API server: not like for like.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from joymigrate.run.cluster import inventory, jobs
from joymigrate.run.cluster.events import Cancelled, Ended, Start, Submitted
from joymigrate.run.cluster.queues import queue_of
from joymigrate.run.cluster.scheduler import Scheduler

SIZES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8), (64, 8)]
SHARE = np.array([0.55, 0.04, 0.14, 0.16, 0.05, 0.03, 0.015, 0.01, 0.005])
KINDS = [("gpu-8", 0.4), ("ascend-910b-8", 0.4), ("ascend-910-8", 0.2)]
NODES = """
nodes:
- {name: g, kind: gpu-8, count: 500, per_leaf: 32, leaves_per_spine: 8}
- {name: n, kind: ascend-910b-8, count: 500, per_leaf: 32, leaves_per_spine: 8}
- {name: o, kind: ascend-910-8, count: 250, per_leaf: 32, leaves_per_spine: 8}
"""
QUEUES = [
    {"name": "research", "min": 2000, "max": 7000},
    {"name": "search", "min": {"gpu": 1000, "npu": 1000}, "max": 8000},
    {"name": "ads", "min": 1500, "max": 6000, "eviction": "never"},
    {"name": "guest", "max": 4000},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(measure(options.decisions, options.seed), indent=2))


def measure(decisions: int, seed: int) -> dict[str, float]:
    """Run the mix and count."""
    rng = np.random.default_rng(seed)
    began = time.process_time()
    cluster = inventory.from_data(inventory.parse(NODES, "benchmark"))
    items = jobs.read_items({"jobs": [], "queues": QUEUES}, "benchmark").queues
    queues = [queue_of(item) for item in items]
    scheduler = Scheduler(cluster, queues)
    warm_up(scheduler)
    start_s = time.process_time() - began
    sizes = rng.choice(len(SIZES), decisions, p=SHARE / SHARE.sum())
    kinds = rng.choice(len(KINDS), decisions, p=[share for _, share in KINDS])
    owners = rng.choice(len(queues), decisions)
    tasks = {
        (size, kind): jobs.PodGroup(*SIZES[size], kinds=(KINDS[kind][0],))
        for size in range(len(SIZES))
        for kind in range(len(KINDS))
    }
    live: list[str] = []
    in_use, total, placed, pods, evicted, waited = 0.0, float(cluster.cards), 0, 0, 0, 0
    took = np.zeros(decisions)
    ending = 0.0
    for i in range(decisions):
        while live and in_use > 0.93 * total:
            name = live.pop(int(rng.integers(len(live))))
            run = scheduler.running.get(name)
            if run is None:
                continue
            in_use -= run.entry.job.cards
            at = time.process_time()
            scheduler.on(Ended(name, float(i)))
            ending += time.process_time() - at
        job = jobs.GangJob(
            f"j{i}", (tasks[int(sizes[i]), int(kinds[i])],), queues[int(owners[i])].name,
            int(rng.integers(3)), 60.0,
        )  # fmt: skip
        at = time.process_time()
        actions = scheduler.on(Submitted(job, float(i)))
        refusal = scheduler.why(job.name)
        if refusal is not None:
            _ = refusal.reason, refusal.frees
        took[i] = time.process_time() - at
        for action in actions:
            if isinstance(action, Start):
                live.append(action.job.name)
                in_use += action.job.cards
                placed += 1
                pods += action.job.pods
            else:
                in_use -= action.job.cards
                evicted += 1
        if refusal is not None:
            waited += 1
            scheduler.on(Cancelled(job.name, float(i)))
    return {
        "cards": total,
        "decisions": decisions,
        "decisions_per_s": round(decisions / took.sum()),
        "decisions_per_s_with_ends": round(decisions / (took.sum() + ending)),
        "p50_us": round(float(np.percentile(took, 50)) * 1e6, 1),
        "p99_us": round(float(np.percentile(took, 99)) * 1e6, 1),
        "max_us": round(float(took.max()) * 1e6, 1),
        "placed": placed,
        "pods": pods,
        "waited": waited,
        "evicted": evicted,
        "in_use_pct": round(100 * in_use / total, 1),
        "start_s": round(start_s, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def warm_up(scheduler: Scheduler) -> None:
    """Build the lookup tables, which belong to the start."""
    for number, (pods, cards) in enumerate(SIZES):
        for kind, _ in KINDS:
            job = jobs.GangJob(f"warm{number}{kind}", (jobs.PodGroup(pods, cards, kinds=(kind,)),))
            scheduler.on(Submitted(job))
            scheduler.on(Cancelled(job.name))


if __name__ == "__main__":
    main()
