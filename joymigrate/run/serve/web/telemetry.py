"""OpenTelemetry: a span for each request and for each attempt at a backend, and their numbers.

Names follow the semantic conventions of HTTP and of generative AI
(opentelemetry.io/docs/specs/semconv/gen-ai). Where spans and metrics go say the variables that
OpenTelemetry's own SDK reads, such as OTEL_EXPORTER_OTLP_ENDPOINT; without one of them nothing is
imported. The context of a request is W3C's `traceparent`. No text of a request or answer is sent.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from joymigrate import __version__
from joymigrate.errors import JoyError
from joymigrate.extras import install
from joymigrate.run.serve.web import apis

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
OPERATIONS = {path: row.operation for path, row in apis.FIXED.items() if row.operation}
# Notes of a request that are attributes of its span.
NOTES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "finish": "gen_ai.response.finish_reasons",
    "ttft_seconds": "joymigrate.time_to_first_token_seconds",
}
CONTEXT = ("traceparent", "tracestate")  # headers
ERROR_FROM = 500
CLOSE_SECONDS = 3.0


def open_telemetry(service: str) -> Telemetry | None:
    """What the environment asks for; None where it asks for nothing. `service` is the name where
    OTEL_SERVICE_NAME says none. Raises `JoyError` when the packages are absent."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    traces = bool(os.environ.get(ENDPOINT) or os.environ.get(TRACES))
    metrics = bool(os.environ.get(ENDPOINT) or os.environ.get(METRICS))
    if not traces and not metrics:
        return None
    try:
        return Telemetry(service, traces=traces, metrics=metrics)
    except ImportError as error:
        raise JoyError(
            f"{ENDPOINT} asks for telemetry, which needs {error.name}", help=install("otel")
        ) from None


def without_context(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that say nothing of the client's trace: a copy of its request is no part of it."""
    return {name: value for name, value in headers.items() if name.lower() not in CONTEXT}


class Telemetry:
    """Where spans and numbers of this process go."""

    def __init__(self, service: str, *, traces: bool = True, metrics: bool = True) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = os.environ.get("OTEL_SERVICE_NAME") or service
        resource = Resource.create({"service.name": named, "service.version": __version__})
        self.traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        if traces:
            self.traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if metrics else []
        self.metrics = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self.tracer = self.traces.get_tracer("joymigrate", __version__)
        self.propagator: Any = TraceContextTextMapPropagator()
        meter = self.metrics.get_meter("joymigrate", __version__)
        self.seconds = meter.create_histogram(
            "gen_ai.server.request.duration", "s", "From the request to the end of its answer"
        )
        self.first = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", "From the request to its first token"
        )
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of requests and answers"
        )

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> RequestSpan | None:
        """The span of a request that came in; None for pages and health checks."""
        if method != "POST":
            return None
        from opentelemetry.trace import SpanKind

        carrier = {name.lower(): value for name, value in headers.items()}
        span = self.tracer.start_span(
            OPERATIONS.get(path, method),
            context=self.propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
        )
        return RequestSpan(self, span, path)

    async def finish(self) -> None:
        """Send what waits; a collector that does not answer holds nobody up for long."""
        closing = threading.Thread(target=self.close, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)

    def close(self) -> None:
        """Send what waits."""
        self.traces.shutdown()
        self.metrics.shutdown()


class RequestSpan:
    """A span while its request runs."""

    def __init__(self, telemetry: Telemetry, span: Any, path: str) -> None:
        self.telemetry, self.span, self.path = telemetry, span, path
        self.started = time.perf_counter()

    def attempt(self, backend: str, url: str) -> RequestSpan:
        """The span of one attempt at a backend."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self.telemetry.tracer.start_span(
            f"attempt {backend}",
            context=set_span_in_context(self.span),
            kind=SpanKind.CLIENT,
            attributes={"joymigrate.upstream": backend, "server.address": url},
        )
        return RequestSpan(self.telemetry, span, self.path)

    def headers(self) -> dict[str, str]:
        """What tells the next server about this span."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self.telemetry.propagator.inject(carrier, context=set_span_in_context(self.span))
        return carrier

    def answered(self, status: int) -> None:
        """A backend's answer has begun."""
        self.span.set_attribute("http.response.status_code", status)

    def leave(self) -> None:
        """The attempt has ended, well or badly."""
        self.span.end()

    def error(self, kind: str) -> None:
        """Mark the span as failed."""
        from opentelemetry.trace import StatusCode

        self.span.set_attribute("error.type", kind)
        self.span.set_status(StatusCode.ERROR)

    def end(self, status: int, notes: Mapping[str, Any] | None = None) -> None:
        """The answer has ended; `notes` are the request log's."""
        self.span.set_attribute("http.response.status_code", status)
        notes = notes or {}
        common = {"gen_ai.provider.name": "joymigrate"}
        operation = OPERATIONS.get(self.path)
        if operation is not None:
            common["gen_ai.operation.name"] = operation
        if notes.get("model"):
            common["gen_ai.request.model"] = str(notes["model"])
            self.span.update_name(f"{operation or 'POST'} {notes['model']}")
        if operation is not None:
            self.span.set_attributes(common)
        for name, attribute in NOTES.items():
            if notes.get(name) is not None:
                self.span.set_attribute(attribute, notes[name])
        if status >= ERROR_FROM:
            self.error(str(status))
        self.span.end()
        if operation is not None:
            self.record(common, status, notes)

    def record(self, common: Mapping[str, str], status: int, notes: Mapping[str, Any]) -> None:
        """Put the request into the metrics."""
        telemetry = self.telemetry
        more = {"error.type": str(status)} if status >= ERROR_FROM else {}
        telemetry.seconds.record(time.perf_counter() - self.started, {**common, **more})
        if notes.get("ttft_seconds") is not None:
            telemetry.first.record(notes["ttft_seconds"], common)
        for name, kind in (("prompt_tokens", "input"), ("completion_tokens", "output")):
            if notes.get(name):
                telemetry.tokens.record(notes[name], {**common, "gen_ai.token.type": kind})
