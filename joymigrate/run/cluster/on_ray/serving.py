"""Keeping a service's replicas on Ray: look at the counter, submit and cancel jobs, and again."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from joymigrate.errors import JoyError
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.replicas import ReplicaChange, ServedReplicas, replica, requests_so_far

LIVE = ("waiting", "held", "running")


def read_total(url: str, timeout_s: float = 5.0) -> float:
    """The requests that a gateway has counted."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise JoyError(f"no metrics: {error}", where=url, help="the gateway's /metrics") from error
    return requests_so_far(text, url)


def keep(
    served: ServedReplicas,
    job: GangJob,
    ask: Callable[..., Any],
    total: Callable[[], float],
    interval_s: float,
    user: str,
) -> Iterator[ReplicaChange]:
    """What was changed, look by look. `ask(method, *arguments)` reaches the controller.

    A look without an answer of the gateway changes nothing: replicas stay as they are.
    """
    while True:
        rows = ask("status", (), False)["jobs"]
        live = [row["job"] for row in rows if row["state"] in LIVE]
        try:
            change = served.on(time.time(), total(), live)
        except JoyError as error:
            change = ReplicaChange(len(live), 0.0, 0.0)
            print(f"warning: {error}", flush=True)
        if change.start:
            ask("submit", [replica(job, name) for name in change.start], user, uuid4().hex)
        for name in change.stop:
            ask("cancel", name, user)
        yield change
        time.sleep(interval_s)
