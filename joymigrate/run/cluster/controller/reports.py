"""What a log and a scheduler say about queues, the past and the use of cards, as plain data."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Any

from joymigrate.run.cluster.controller import store, usage
from joymigrate.run.cluster.controller.ledger import Ledger
from joymigrate.run.cluster.scheduler import Scheduler


def quota_data(scheduler: Scheduler, ledger: Ledger) -> dict[str, Any]:
    """Declared queues: MIN, deserved, MAX and use, by what each limit is on."""
    rows = []
    for queue in ledger.queues:
        account = scheduler.quotas.account(queue.name)
        limits = [*account.min, *account.deserved, *account.max]
        used = {limit.what: limit.used for limit in limits}
        states = [one.state for one in ledger.records.values() if one.job.queue == queue.name]
        rows.append(
            {
                "queue": queue.name,
                "parent": queue.parent,
                "limits": [
                    {
                        "what": what,
                        "min": queue.min.get(what),
                        "deserved": queue.deserved.get(what),
                        "max": queue.max.get(what),
                        "used": round(amount, 3),
                    }
                    for what, amount in used.items()
                ],
                "running": states.count("running"),
                "waiting": states.count("waiting"),
            }
        )
    return {"schema": "joymigrate.quota/1", "queues": rows}


def read_history(folder: Path, job: str = "", count: int = 0) -> list[dict[str, Any]]:
    """The facts of a log, of one job where it is named; with `count` the last ones."""
    with closing(store.read_only(folder)) as base:
        facts = store.facts(base, job=job or None)
        kept = deque(facts, maxlen=count) if count else itertools.chain(facts)
        return [dataclasses.asdict(fact) for fact in kept]


def read_usage(folder: Path, since: float, until: float) -> list[dict[str, Any]]:
    """Use of cards between two times, seconds since 1970."""
    with closing(store.read_only(folder)) as base:
        uses = usage.tally(store.facts(base), since, until)
    return [dataclasses.asdict(use) for use in uses]
