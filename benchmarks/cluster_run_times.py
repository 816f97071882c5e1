"""Mean wait of Philly's jobs when nobody states a run time: predicted run times, elastic jobs.

Every virtual cluster stands for a user, the model that a job trains for its program. Elastic: each
job of several cards may run on `--least` of them, at that share of its speed; each change of size
costs a minute. `done_h` is the mean time from submission to the end: an elastic job that starts
sooner on fewer cards also runs longer.

    python -m benchmarks.cluster_run_times philly_msr_open.csv --nodes 27
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path

from joymigrate.run.cluster import inventory, traces
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.simulate import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[27, 36, 64])
    parser.add_argument("--no-program", action="store_true", help="the model is not known")
    parser.add_argument("--least", type=float, default=0.5, help="share of an elastic job's cards")
    options = parser.parse_args()
    with options.trace.open() as file:
        programs = [row["job_type"] for row in csv.DictReader(file)]
    trace = traces.read(options.trace, "philly")
    unstated = tuple(
        replace(arrival, job=replace(arrival.job, minutes=None, command=program))
        for arrival in trace.arrivals
        for program in [
            () if options.no_program else (programs[int(arrival.job.name.rpartition("-")[2])],)
        ]
    )
    elastic = tuple(replace(one, job=made_elastic(one.job, options.least)) for one in unstated)
    arrived = {one.job.name: one.at for one in trace.arrivals}
    for nodes in options.nodes:
        item = {"name": "n", "kind": "gpu-8", "count": nodes, "per_leaf": 8}
        cluster = inventory.from_data({"nodes": [item]})
        waits = {}
        for name, jobs, predict in (
            ("stated", trace.arrivals, False),
            ("neither", unstated, False),
            ("predicted", unstated, True),
            ("elastic", elastic, False),
            ("both", elastic, True),
        ):
            settings = ClusterSettings(predict=predict)
            run = simulate(cluster, traces.JobTrace(jobs), "topology", settings=settings)
            done = [at - arrived[job] for job, at in run.tally.finished.items()]
            waits[name] = {"mean_h": run.wait_mean_h, "p99_h": run.wait_p99_h,
                           "done_h": sum(done) / max(len(done), 1) / 3600,
                           "fairness": run.fairness, "unplaced": len(run.unplaced),
                           "resizes": run.tally.resizes}  # fmt: skip
            print(nodes * 8, name, waits[name], flush=True)
        base = max(waits["neither"]["mean_h"], 1e-9)
        less = {name: 100 * (1 - row["mean_h"] / base) for name, row in waits.items()}
        print(json.dumps({"cards": nodes * 8, "less_pct": less, **waits}), flush=True)


def made_elastic(job: GangJob, least: float) -> GangJob:
    """A job of several cards as one-card pods, of which so large a share is enough."""
    cards = int(job.cards)
    if cards < 2:
        return job
    return replace(job, tasks=(PodGroup(cards, 1),), min_pods=max(1, round(cards * least)))


if __name__ == "__main__":
    main()
