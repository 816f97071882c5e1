"""The cluster's state as Prometheus text, under our own names (prefix `joymigrate_cluster_`)."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.extras import need
from joymigrate.run.cluster.http_door import JSON, Answer, open_door

STATES = ("waiting", "running", "done", "failed", "cancelled")
TEXT = "text/plain; version=0.0.4; charset=utf-8"


def exposition(status: Mapping[str, Any]) -> str:
    """Text format 0.0.4 of a status (schema `joymigrate.cluster/1`)."""
    need("cluster", "prometheus_client", what="metrics")
    from prometheus_client import generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    jobs, nodes = status["jobs"], status["nodes"]
    queues = sorted({row["queue"] for row in jobs})
    kinds = {node["node"]: node["kind"] for node in nodes}
    states = Counter((row["queue"], row["state"]) for row in jobs)
    held = Counter(dict.fromkeys(itertools.product(queues, kinds.values()), 0))
    for row in jobs:
        for pod in row["pods"]:
            held[row["queue"], kinds.get(pod["node"], "unknown")] += len(pod["cards"])
    found = []

    def add(name: str, help: str, labels: str, rows: Any, made: Any = GaugeMetricFamily) -> None:
        family = made(f"joymigrate_cluster_{name}", help, labels=labels.split())
        for *texts, value in rows:
            family.add_metric(texts, value)
        found.append(family)

    of_states = [(*one, states[one]) for one in itertools.product(queues, STATES)]
    add("jobs", "Jobs by queue and state.", "queue state", of_states)
    in_use = [(*one, number) for one, number in sorted(held.items())]
    add("cards_in_use", "Cards held by running jobs, by queue and kind of server.", "queue kind",
        in_use)  # fmt: skip
    there = [(one["node"], one["kind"], one["cards"]) for one in nodes]
    add("node_cards", "Cards per node.", "node kind", there)
    free = [(one["node"], one["kind"], one["free"]) for one in nodes]
    add("node_cards_free", "Free cards per node.", "node kind", free)
    waits = [(row["job"], row["queue"], row["waited_s"]) for row in jobs]
    add("wait_seconds", "How long jobs wait, or did before they started.", "job queue", waits)
    stops = [(row["job"], row["queue"], row["evictions"]) for row in jobs]
    add("evictions", "Times that a job's gang was stopped.", "job queue", stops,
        CounterMetricFamily)  # fmt: skip
    registry: Any = SimpleNamespace(collect=lambda: found)
    return generate_latest(registry).decode()


def serve(
    host: str, port: int, pages: Mapping[str, Callable[[], str]], talk: Callable[[str], None]
) -> None:
    """Answer scrapes of `pages` (path → its text; `.json` is JSON) until interrupted."""

    def answer(path: str, body: bytes) -> Answer:
        if path not in pages:
            return 404, TEXT, "no such page\n"
        try:
            return 200, JSON if path.endswith(".json") else TEXT, pages[path]()
        except JoyError as error:  # the cluster is away; who asks is told, and may ask again
            return 503, TEXT, f"{error}\n"

    server = open_door(host, port, answer)
    talk(f"metrics at http://{host}:{server.server_address[1]}/metrics")
    try:
        while True:
            time.sleep(3600)
    finally:
        server.shutdown()
