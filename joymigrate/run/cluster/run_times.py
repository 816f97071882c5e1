"""Run times of jobs that state none, as quantiles of what their like has run before.

Alike is first the same user, queue, program and number of cards, then less and less of it. Only
runs that ended well are learnt from. What still runs is not: while a long job runs for the first
time, its like are expected to be as short as those that have ended.
"""

from __future__ import annotations

import numpy as np

from joymigrate.run.cluster.jobs import GangJob

FEWEST = 3  # runs below which no quantile is said
KEPT = 40  # last runs of what is alike
MOST = 1000  # of what is alike; what was not run for the longest time is forgotten
MIDDLE, HIGH = 0.5, 0.9
History = dict[str, tuple[float, ...]]  # what is alike → seconds, the last one last


def keys_of(job: GangJob) -> tuple[str, ...]:
    """The names under which a job's run is kept, the most like first."""
    program = " ".join(job.command)[:200]
    cards = f"{job.cards:g}"
    return (
        "\t".join(("program", job.user, job.queue, program, cards)),
        "\t".join(("cards", job.user, job.queue, cards)),
        "\t".join(("user", job.user, job.queue)),
    )


def learn(history: History, job: GangJob, seconds: float) -> None:
    """A run has ended well after `seconds`."""
    for key in keys_of(job):
        history[key] = (*history.pop(key, ()), seconds)[-KEPT:]
    while len(history) > MOST:
        del history[next(iter(history))]


def predict(
    history: History, job: GangJob, quantile: float = MIDDLE, ran_s: float = 0.0
) -> float | None:
    """The seconds that a job will run, or None while too few of its like have ended.

    One that has run for `ran_s` is compared with those alone that ran longer.
    """
    for key in keys_of(job):
        runs = [seconds for seconds in history.get(key, ()) if seconds > ran_s]
        if len(runs) >= FEWEST:
            return float(np.quantile(runs, quantile))
    return None
