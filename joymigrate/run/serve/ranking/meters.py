"""The metrics of a ranking server; docs/how-to/serve-ranking.md lists them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from joymigrate.run.serve.monitor.metrics import Histogram, Metrics, MetricValue

if TYPE_CHECKING:
    from joymigrate.run.serve.ranking.lanes import RankingEngine
    from joymigrate.run.serve.ranking.packages import Packages
    from joymigrate.run.serve.ranking.remote import Shards
    from joymigrate.run.serve.ranking.users import UserSide
    from joymigrate.run.serve.ranking.versions import Versions

OUTCOMES = ("ok", "client_error", "error", "rejected", "client_closed")
COUNTERS = (
    ("batches", "Batches that ran"),
    ("candidates", "Candidates that were scored"),
    ("shared", "Requests whose user another request of the batch had brought"),
    ("sliced", "Large requests that were computed in pieces"),
    ("compared", "Merged batches and requests in pieces that were computed again, alone"),
    ("differing", "Of these, those that came out otherwise: merging, or cutting, has stopped"),
    ("isolated", "Batches that were halved because a request failed"),
    ("failed", "Requests that failed alone"),
    ("late", "Requests whose deadline passed in the queue"),
    ("cancelled", "Requests that were taken back in the queue"),
    ("degraded", "Answers with default rows of a lost shard"),
)


class RankingMeters:
    """Everything that a ranking server counts."""

    def __init__(self, engine: RankingEngine) -> None:
        self.metrics = metrics = Metrics()
        requests = metrics.counter(
            "joymigrate_requests", "Requests by what became of them", "outcome"
        )
        self.outcomes: dict[str, MetricValue] = {name: requests.of(name) for name in OUTCOMES}
        self.seconds: Histogram = metrics.histogram(
            "joymigrate_request_seconds", "Until the answer"
        ).of()
        counts = engine.counts
        metrics.histogram("joymigrate_ranking_batch_seconds", "One batch").series[()] = (
            counts.batch_seconds
        )
        metrics.histogram("joymigrate_ranking_wait_seconds", "In the queue").series[()] = (
            counts.wait_seconds
        )
        for name, help in COUNTERS:
            self.counter(f"ranking_{name}", help, of(counts, name))
        self.counter("ranking_requests", "Requests in batches", of(counts, "requests"))
        self.gauge("inflight", "Requests that run", lambda: engine.running)
        self.gauge("waiting", "Requests in the queue", lambda: len(engine.queue))
        self.gauge(
            "ranking_batch_requests",
            "Requests of a batch, mean since the start",
            lambda: counts.requests / max(1, counts.batches),
        )
        self.gauge(
            "ranking_waste",
            "Share of padding in padded sequences",
            lambda: counts.waste / max(1, counts.elements),
        )
        self.gauge("ranking_cost_error", "Median relative error of predicted batch times",
                   lambda: engine.cost.error)  # fmt: skip
        self.gauge("ranking_lanes", "Lanes", lambda: len(engine.lanes))
        self.gauge("ranking_freshness_seconds", "Age of the newest weights",
                   lambda: time.time() - engine.loaded_at)  # fmt: skip
        self.counter("ranking_compilations", "Graphs that this process compiled itself",
                     compilations)  # fmt: skip
        metrics.counter("joymigrate_ranking_runs", "Batches by the code that ran", "code").ask = (
            lambda: {(how,): cell.value for how, cell in counts.runs.items()}
        )
        self.gauge("ranking_version_number", "The version that answers",
                   lambda: float(engine.version))  # fmt: skip
        metrics.gauge(
            "joymigrate_ranking_version", "1 for the version that answers", "version",
            ask=lambda: {(engine.version,): 1.0},
        )  # fmt: skip

    def add_versions(self, versions: Versions) -> None:
        """What became of published versions."""
        self.counter("ranking_versions_applied", "Versions applied", lambda: versions.applied)
        self.counter("ranking_versions_refused", "Versions refused", lambda: versions.refused)
        self.counter("ranking_rollbacks", "Returns to a version before",
                     lambda: versions.rolled_back)  # fmt: skip
        self.metrics.gauge(
            "joymigrate_ranking_sample_age_seconds", "Age of the newest sample behind the weights",
            ask=lambda: {(): versions.freshness_seconds} if versions.event_time else {},
        )  # fmt: skip

    def add_shards(self, shards: Shards) -> None:
        """The sparse part as this one sees it."""
        self.gauge("ranking_shards_lost", "Sparse shards without an address that answers",
                   shards.lost_shards)  # fmt: skip
        self.counter("ranking_shard_failures", "Addresses of shards that failed",
                     lambda: shards.failures)  # fmt: skip
        self.cache("row_cache", "rows", shards.cache_count)

    def add_users(self, users: UserSide) -> None:
        """The cache of user sides."""
        self.cache("user_cache", "users", lambda what: float(getattr(users, what)))
        self.gauge("ranking_user_cache_bytes", "Bytes of kept user sides", lambda: users.bytes)

    def cache(self, name: str, what: str, ask: Callable[[str], float]) -> None:
        """Hits and misses of a cache, and both together."""
        self.counter(f"ranking_{name}_queries", f"{what} that were looked for",
                     lambda: ask("hits") + ask("misses"))  # fmt: skip
        for side in ("hits", "misses"):
            self.counter(f"ranking_{name}_{side}", f"{side} of kept {what}",
                         lambda side=side: ask(side))  # type: ignore[misc]  # fmt: skip

    def add_packages(self, packages: Packages) -> None:
        """The state of the compiled package."""
        self.metrics.gauge(
            "joymigrate_ranking_compile_state", "1 for the state that holds", "state",
            ask=lambda: {(packages.state,): 1.0},
        )  # fmt: skip
        self.gauge("ranking_compile_seconds", "The last compilation", lambda: packages.seconds)
        self.counter("ranking_compile_attempts", "Compilers started", lambda: packages.attempts)

    def counter(self, name: str, help: str, ask: Callable[[], float]) -> None:
        """A number that the engine keeps and that only grows."""
        self.metrics.counter(f"joymigrate_{name}", help).ask = lambda: {(): float(ask())}

    def gauge(self, name: str, help: str, ask: Callable[[], float]) -> None:
        """A number that the engine keeps."""
        self.metrics.gauge(f"joymigrate_{name}", help, ask=lambda: {(): float(ask())})

    def text(self) -> bytes:
        """The page that Prometheus scrapes."""
        return self.metrics.text()


def of(counts: object, name: str) -> Callable[[], float]:
    """Reads one number of the counts."""
    return lambda: float(getattr(counts, name))


def compilations() -> float:
    """Graphs that torch compiled in this process since its start, by torch's own counters."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return float(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0.0
