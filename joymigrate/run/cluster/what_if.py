"""A recorded past played again, with its queues as they were and as they might be.

The replay's own error comes first: how far the wait of each job in the replay is from its wait in
the record. A difference between the two sets of queues is said only where it is larger than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.cluster.entries import ORDERS, ClusterSettings
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import Workload
from joymigrate.run.cluster.simulate import Simulation, simulate
from joymigrate.run.cluster.traces import JobTrace

SCHEMA = "joymigrate.what-if/1"
FEWEST = 10  # jobs of a team below which its error is not known
ALL = "all teams"
NEVER = float("inf")


def ask(
    trace: JobTrace, cluster: Inventory, change: Workload, policy: str, within_min: float
) -> dict[str, Any]:
    """What other queues would have done to a recorded past, as plain data; times in minutes.

    `cluster` are the nodes; the trace says the queues as they were. Of the orders that the
    scheduler knows, the one counts whose replay is nearer to the record.
    """
    if all(arrival.waited is None for arrival in trace.arrivals):
        raise JoyError("this record has no job that started", help="a record says real waits")
    trace, notes = know_models(trace, cluster)
    runs = {order: replay(trace, cluster, policy, order) for order in ORDERS}
    errors = {order: errors_of(trace, run) for order, run in runs.items()}
    order = min(ORDERS, key=lambda one: float(np.mean([*errors[one].values()])))
    other = replace(trace, queues=change.queues, weights=tuple(change.weights.items()))
    old, new = runs[order], replay(other, cluster, policy, order)
    lost = old.tally.never.keys() - new.tally.never.keys()
    declared = {queue.name for queue in change.queues}
    free = sorted({arrival.job.queue for arrival in trace.arrivals} - declared)
    if free:
        notes.append(f"without limits in the change: {', '.join(free)}")
    if old.tally.never:
        notes.append(
            f"{len(old.tally.never)} jobs never start in the replay of the past either: its nodes "
            "or queues are not what they were"
        )
    if lost:
        notes.append(f"{len(lost)} jobs that never start in the replay of the past would start")
    teams: dict[str, list[str]] = {ALL: [arrival.job.name for arrival in trace.arrivals]}
    queues = {arrival.job.name: arrival.job.queue for arrival in trace.arrivals}
    for name, queue in queues.items():
        teams.setdefault(queue, []).append(name)
    real = {one.job.name: one.waited for one in trace.arrivals if one.waited is not None}
    return {
        "schema": SCHEMA,
        "policy": policy,
        "order": order,
        "within_min": within_min,
        "teams": [
            team_data(team, names, real, errors[order], (old, new), within_min)
            for team, names in teams.items()
        ],
        "never_fit": [
            {"job": name, "queue": queues[name], "reason": reason}
            for name, reason in new.tally.never.items()
            if name not in old.tally.never
        ],
        "notes": [*trace.notes, *notes],
    }


def replay(trace: JobTrace, cluster: Inventory, policy: str, order: str) -> Simulation:
    """A trace played to its end. Limits of a record may be more than the nodes that it has."""
    return simulate(cluster, trace, policy, settings=ClusterSettings(order=order, overcommit=True))


def know_models(trace: JobTrace, cluster: Inventory) -> tuple[JobTrace, list[str]]:
    """Jobs with the inventory's names of models; a model that no node has is not asked for."""
    known = {node.model.lower(): node.model for node in cluster.nodes if node.model}
    strange: set[str] = set()
    arrivals = []
    for one in trace.arrivals:
        tasks = []
        for task in one.job.tasks:
            strange |= {model for model in task.models if model.lower() not in known}
            models = [known[model.lower()] for model in task.models if model.lower() in known]
            tasks.append(replace(task, models=tuple(models)))
        arrivals.append(replace(one, job=replace(one.job, tasks=tuple(tasks))))
    notes = [f"no node has the models {', '.join(sorted(strange))}: any will do"] if strange else []
    return replace(trace, arrivals=tuple(arrivals)), notes


def errors_of(trace: JobTrace, run: Simulation) -> dict[str, float]:
    """|replayed wait - recorded wait| (s) of every job with both; infinite for one that never
    starts in the replay."""
    waited = run.tally.waited
    return {
        one.job.name: abs(waited.get(one.job.name, NEVER) - one.waited)
        for one in trace.arrivals
        if one.waited is not None
    }


def team_data(
    team: str,
    names: Sequence[str],
    real: Mapping[str, float],
    errors: Mapping[str, float],
    runs: tuple[Simulation, Simulation],
    within_min: float,
) -> dict[str, Any]:
    """One team's waits: recorded, replayed, changed, and whether the difference can be said."""
    old, new = (run.tally.waited for run in runs)
    started = [name for name in names if name in errors]  # the error speaks of no others
    judged = [errors[name] / 60 for name in started]
    ran_old, ran_new = ([name for name in started if name in waited] for waited in (old, new))
    both = [name for name in ran_old if name in new]
    error = mean(judged)
    change = mean([new[name] - old[name] for name in both], 60)
    if len(judged) < FEWEST:
        why = f"its error is not known from {len(judged)} recorded jobs"
    elif error is None:
        why = "jobs that really started never start in the replay"
    elif change is None:
        why = "none of its jobs starts in both replays"
    elif (change < 0 and len(both) < len(ran_old)) or (change > 0 and len(both) < len(ran_new)):
        why = "other jobs of it start, so that those in both replays say too little"
    else:
        why = "" if abs(change) > error else "smaller than the replay's error"
    return {
        "team": team,
        "jobs": len(names),
        "judged": len(judged),
        "recorded_min": mean([real[name] for name in names if name in real], 60),
        "replayed_min": mean([old[name] for name in ran_old], 60),
        "changed_min": mean([new[name] for name in ran_new], 60),
        "error_median_min": finite(np.median(judged)) if judged else None,
        "error_p95_min": quantile(judged, 0.95),
        "error_mean_min": error,
        "within_pct": mean([100.0 * (one <= within_min) for one in judged]),
        "difference_min": None if why else change,
        "unsaid": why,
        "not_started": [len(started) - len(ran) for ran in (ran_old, ran_new)],
    }


def mean(values: Iterable[float], unit: float = 1.0) -> float | None:
    """The mean in a unit; None where there is none, or it is infinite."""
    found = [*values]
    return finite(np.mean(found) / unit) if found else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them does not exceed; None where it is infinite."""
    ranked = sorted(values)
    return finite(ranked[int(np.ceil(share * len(ranked))) - 1]) if ranked else None


def finite(value: Any) -> float | None:
    """A figure of a document."""
    return round(float(value), 3) if np.isfinite(value) else None
