"""What a log and a scheduler say about queues, the past and the use of cards, as plain data."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from joymigrate.run.cluster.controller import store
from joymigrate.run.cluster.controller.ledger import LIVE, JobLedger, JobRecord
from joymigrate.run.cluster.explain import explain
from joymigrate.run.cluster.foresight import look_ahead
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.timeline import find_holders

MOST_JOBS = 100  # of each state on the board: a reason is worked out for every waiting one
MOST_NODES = 256
LOOKED = 10  # waiting jobs of which `status` says what is enough
LOOKED_SIZE = 3000  # nodes and jobs of a cluster, times the jobs that are looked at


def status_data(
    scheduler: Scheduler,
    ledger: JobLedger,
    now: float,
    names: Sequence[str] = (),
    reasons: bool = True,
) -> dict[str, Any]:
    """All jobs (or the named ones) at `now` with their pods or the reason why they wait.

    Without `reasons` none is worked out: each costs a try of the scheduler.
    """
    records = [r for name, r in ledger.records.items() if not names or name in names]
    found = enough_for_first(scheduler, now) if reasons and not names else {}
    waiting = len(scheduler.waiting) + len(scheduler.gate.entries)
    return {
        "schema": "joymigrate.cluster/1",
        "jobs": [job_row(scheduler, record, now, reasons, found) for record in records],
        "nodes": node_rows(scheduler, ledger),
        "warnings": list(scheduler.inventory.warnings),
        "looked_ahead": {"waiting": waiting, "looked": len(found)},
    }


def enough_for_first(scheduler: Scheduler, now: float) -> dict[str, dict[str, Any]]:
    """What is enough for the jobs whose turn comes first; of a large cluster for fewer of them.

    Each costs some tries on a copy of the scheduler, during which nothing else is decided.
    """
    names = [entry.job.name for entry in scheduler.in_order()] + list(scheduler.gate.entries)
    size = len(scheduler.state.nodes) + len(scheduler.running) + len(names)
    looked = max(1, min(LOOKED, LOOKED_SIZE // max(size, 1)))
    if not names:
        return {}
    outlook = look_ahead(scheduler, now)
    found = {name: explain(scheduler, name, now, outlook) for name in names[:looked]}
    return {name: data for name, data in found.items() if data is not None}


def node_rows(scheduler: Scheduler, ledger: JobLedger) -> list[dict[str, Any]]:
    """Nodes with their free and failed cards."""
    return [
        {"node": node.name, "kind": node.kind.name, "cards": node.cards,
         "free": int(scheduler.state.free[i]).bit_count(),
         "failed": list(ledger.failed.get(node.name, ())),
         "cordoned": ledger.cordoned.get(node.name)}
        for i, node in enumerate(scheduler.inventory.nodes)
    ]  # fmt: skip


def job_row(
    scheduler: Scheduler,
    record: JobRecord,
    now: float,
    reasons: bool = True,
    found: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """A job with its pods, or the reason why it waits; `found` says of some what is enough."""
    known = (found or {}).get(record.job.name, {})
    waits = record.state in ("waiting", "held")
    judged = reasons and record.state == "waiting"
    refusal = scheduler.why(record.job.name) if judged else None
    # One that has been stopped waits anew; one that runs or is over waited for its last start.
    waited = now - record.since if waits else (record.started or now) - record.submitted
    return {
        "job": record.job.name,
        "queue": record.job.queue,
        "by": record.by,
        "state": record.state,
        "pods": [{"node": p.node, "cards": list(p.cards), "rank": p.rank} for p in record.pods],
        "priority": record.job.priority,
        "reason": refusal.reason if refusal else record.note,
        "frees": known.get("frees") or (refusal.frees if refusal else ""),
        "start": known.get("start"),
        "permanent": bool(refusal and refusal.permanent),
        "tries": record.tries,
        "attempt": record.attempt,
        "world": record.job.pods,
        "evictions": record.evictions,
        "exit_codes": list(record.exit_codes),
        "waited_s": round(max(0.0, waited), 3),
    }


def board_data(scheduler: Scheduler, ledger: JobLedger, now: float) -> dict[str, Any]:
    """A cluster on one page: cards with who has them, queues, jobs that run and that wait.

    Of each state the first `MOST_JOBS` jobs, waiting ones in the order of their turn. `left_out`
    counts the others, and the nodes above `MOST_NODES`.
    """
    place = {entry.job.name: i for i, entry in enumerate(scheduler.in_order())}
    live = {state: ledger.live(state) for state in LIVE}
    live["waiting"].sort(key=lambda record: place.get(record.job.name, len(place)))
    live["running"].sort(key=lambda record: record.started or now)
    nodes = node_rows(scheduler, ledger)
    for row, held in zip(
        nodes, find_holders(scheduler, lambda run: run.entry.job.name, MOST_NODES), strict=False
    ):
        row["held"] = held
    return {
        "schema": "joymigrate.board/1",
        "at": now,
        "kinds": [
            {"kind": kind, "cards": sum(n["cards"] for n in of), "free": sum(n["free"] for n in of)}
            for kind in scheduler.inventory.count()
            if (of := [node for node in nodes if node["kind"] == kind])
        ],
        "nodes": nodes[:MOST_NODES],
        "jobs": [
            {**job_row(scheduler, one, now), "cards": one.job.cards, "started": one.started,
             "minutes": one.job.minutes}
            for records in live.values() for one in records[:MOST_JOBS]
        ],
        "states": dict(Counter(record.state for record in ledger.records.values())),
        "queues": quota_data(scheduler, ledger)["queues"],
        "left_out": {
            "nodes": max(0, len(nodes) - MOST_NODES),
            **{state: max(0, len(found) - MOST_JOBS) for state, found in live.items()},
        },
    }  # fmt: skip


def quota_data(scheduler: Scheduler, ledger: JobLedger) -> dict[str, Any]:
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
        kept = deque(facts, maxlen=count) if count else facts
        return [dataclasses.asdict(fact) for fact in kept]
