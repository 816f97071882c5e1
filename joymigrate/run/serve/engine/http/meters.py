"""The engine's metrics: our names, and beside them the names that dashboards for vLLM read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from joymigrate.run.serve.monitor.metrics import Histogram, Metrics, MetricValue

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.types import EngineStats

OUTCOMES = ("ok", "client_error", "error", "rejected", "client_closed")
# ours, theirs, what it is
HISTOGRAMS = (
    ("time_to_first_token_seconds", "time_to_first_token_seconds", "Until the first token"),
    ("time_per_output_token_seconds", "inter_token_latency_seconds", "Per token after the first"),
    ("request_seconds", "e2e_request_latency_seconds", "Until the last token"),
)
GAUGES: tuple[tuple[str, str, str, Callable[[EngineStats], float]], ...] = (
    ("inflight", "num_requests_running", "Texts that hold blocks", lambda s: s.running),
    ("waiting", "num_requests_waiting", "Texts in the queue", lambda s: s.waiting),
    ("kv_cache_usage", "kv_cache_usage_perc", "Share of the blocks held", lambda s: s.kv_usage),
)
COUNTERS: tuple[tuple[str, str, str, Callable[[EngineStats], float]], ...] = (
    (
        "prefix_cache_queries",
        "prefix_cache_queries",
        "Prompt tokens looked up",
        lambda s: s.prefix_queries,
    ),
    ("prefix_cache_hits", "prefix_cache_hits", "Prompt tokens found", lambda s: s.prefix_hits),
    ("preemptions", "num_preemptions", "Texts put back into the queue", lambda s: s.preemptions),
    ("engine_steps", "iterations", "Steps of the engine", lambda s: s.steps),
    ("drafts", "spec_decode_num_drafts", "Texts of steps that tried tokens", lambda s: s.drafts),
    (
        "draft_tokens",
        "spec_decode_num_draft_tokens",
        "Tokens tried behind texts",
        lambda s: s.drafted,
    ),
    (
        "accepted_tokens",
        "spec_decode_num_accepted_tokens",
        "Of these, those that followed",
        lambda s: s.accepted,
    ),
)


class EngineMeters:
    """Everything that a server counts. `ask` gives the engine's own numbers."""

    def __init__(self, model: str, ask: Callable[[], EngineStats]) -> None:
        self.metrics = metrics = Metrics()
        requests = metrics.counter(
            "joymigrate_requests", "Requests by what became of them", "outcome"
        )
        self.outcomes: dict[str, MetricValue] = {name: requests.of(name) for name in OUTCOMES}
        self.ttft, self.tpot, self.seconds = (self.histogram(*names, model) for names in HISTOGRAMS)
        self.prompt = self.counter("prompt_tokens", "prompt_tokens", "Tokens of prompts", model)
        self.generated = self.counter(
            "generation_tokens", "generation_tokens", "Generated tokens", model
        )
        self.finished = metrics.counter("joymigrate_finished", "Texts by how they ended", "reason")
        self.success = metrics.counter(
            "vllm:request_success", "As joymigrate_finished_total", "model_name", "finished_reason"
        )
        self.model = model
        for row in GAUGES:
            self.asked(*row, ask, gauge=True)
        for row in COUNTERS:
            self.asked(*row, ask, gauge=False)
        failures = metrics.counter("joymigrate_engine_failures", "Forward passes that failed")
        failures.ask = lambda: {(): float(ask().failures)}

    def histogram(self, ours: str, theirs: str, help: str, model: str) -> Histogram:
        """One histogram under two names."""
        made: Histogram = self.metrics.histogram(f"joymigrate_{ours}", help).of()
        alias = self.metrics.histogram(f"vllm:{theirs}", f"As joymigrate_{ours}", "model_name")
        alias.series[(model,)] = made
        return made

    def counter(self, ours: str, theirs: str, help: str, model: str) -> MetricValue:
        """One counter under two names."""
        made: MetricValue = self.metrics.counter(f"joymigrate_{ours}", help).of()
        alias = self.metrics.counter(f"vllm:{theirs}", f"As joymigrate_{ours}_total", "model_name")
        alias.series[(model,)] = made
        return made

    def asked(
        self,
        ours: str,
        theirs: str,
        help: str,
        read: Callable[[EngineStats], float],
        ask: Callable[[], EngineStats],
        *,
        gauge: bool,
    ) -> None:
        """A number that the engine keeps, under two names."""
        add = self.metrics.gauge if gauge else self.metrics.counter
        model = self.model
        add(f"joymigrate_{ours}", help).ask = lambda: {(): float(read(ask()))}
        alias = add(f"vllm:{theirs}", f"As joymigrate_{ours}", "model_name")
        alias.ask = lambda: {(model,): float(read(ask()))}

    def end(self, reason: str) -> None:
        """A text ended."""
        self.finished.of(reason).add()
        if reason in ("stop", "length"):
            self.success.of(self.model, reason).add()

    def text(self) -> bytes:
        """The page that Prometheus scrapes."""
        return self.metrics.text()
