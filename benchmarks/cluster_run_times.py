"""Mean wait of Philly's jobs when nobody states a run time, with and without predictions.

Every virtual cluster stands for a user, the model that a job trains for its program.

    python -m benchmarks.cluster_run_times philly_msr_open.csv --nodes 27
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path

from joymigrate.run.cluster import inventory, traces
from joymigrate.run.cluster.entries import Settings
from joymigrate.run.cluster.simulate import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[27, 36, 64])
    parser.add_argument("--no-program", action="store_true", help="the model is not known")
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
    for nodes in options.nodes:
        item = {"name": "n", "kind": "gpu-8", "count": nodes, "per_leaf": 8}
        cluster = inventory.from_data({"nodes": [item]})
        waits = {}
        for name, jobs, predict in (
            ("stated", trace.arrivals, False),
            ("neither", unstated, False),
            ("predicted", unstated, True),
        ):
            settings = Settings(predict=predict)
            run = simulate(cluster, traces.Trace(jobs), "topology", settings=settings)
            waits[name] = {"mean_h": run.wait_mean_h, "p99_h": run.wait_p99_h,
                           "fairness": run.fairness, "unplaced": len(run.unplaced)}  # fmt: skip
        less = 100 * (1 - waits["predicted"]["mean_h"] / max(waits["neither"]["mean_h"], 1e-9))
        print(json.dumps({"cards": nodes * 8, "less_pct": less, **waits}), flush=True)


if __name__ == "__main__":
    main()
