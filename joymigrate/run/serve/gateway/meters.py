"""The gateway's metrics. Names start with `joymigrate_`; the monitor's series.yaml reads them."""

from __future__ import annotations

from joymigrate.run.serve.monitor.metrics import Histogram, MetricFamily, Metrics, MetricValue

OUTCOMES = ("ok", "client_error", "error", "interrupted", "rejected", "client_closed")
ENDS = ("ok", "failed", "busy", "abandoned", "refused", "unjudged")


class UpstreamMeters:
    """What one backend did."""

    __slots__ = ("ends", "failures", "generated", "name", "prompt", "request", "tpot", "ttft")

    def __init__(self, name: str, meters: GatewayMeters) -> None:
        self.name = name
        self.ends: dict[str, MetricValue] = {end: meters.attempts.of(name, end) for end in ENDS}
        self.failures: MetricFamily = meters.failures
        self.ttft: Histogram = meters.ttft.of(name)
        self.tpot: Histogram = meters.tpot.of(name)
        self.request: Histogram = meters.seconds.of(name)
        self.prompt: MetricValue = meters.prompt.of(name)
        self.generated: MetricValue = meters.generated.of(name)


class GatewayMeters:
    """Everything the gateway counts."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        counter, histogram = metrics.counter, metrics.histogram
        self.requests = counter("joymigrate_requests", "Requests by what the client got", "outcome")
        self.attempts = counter(
            "joymigrate_attempts", "Attempts at a backend by how they ended", "upstream", "outcome"
        )
        self.failures = counter(
            "joymigrate_failures", "Failed attempts by kind", "upstream", "kind"
        )
        self.retries = counter(
            "joymigrate_retries", "Requests tried again before the first byte", "upstream"
        )
        self.resumed = counter(
            "joymigrate_resumed", "Streams taken over in the middle", "upstream", "way"
        )
        self.shadowed = counter("joymigrate_shadow", "Mirrored requests", "outcome")
        self.ttft = histogram(
            "joymigrate_time_to_first_token_seconds", "Until the first event", "upstream"
        )
        self.tpot = histogram(
            "joymigrate_time_per_output_token_seconds", "Per token after the first", "upstream"
        )
        self.seconds = histogram("joymigrate_request_seconds", "Until the last byte", "upstream")
        self.prompt = counter("joymigrate_prompt_tokens", "Tokens of prompts", "upstream")
        self.generated = counter("joymigrate_generation_tokens", "Generated tokens", "upstream")
        self.outcomes: dict[str, MetricValue] = {name: self.requests.of(name) for name in OUTCOMES}

    def upstream(self, name: str) -> UpstreamMeters:
        """The meters of one backend."""
        return UpstreamMeters(name, self)
