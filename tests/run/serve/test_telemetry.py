"""Traces from a client over the gateway to the engine, in the eyes of a collector."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'joymigrate[serve]'")
pytest.importorskip("opentelemetry.sdk", reason="pip install 'joymigrate[otel]'")

import gzip

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from joymigrate.errors import JoyError
from joymigrate.run.serve.web import telemetry

from .engine.http.conftest import call, free_port, make_model, process, wait_ready

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Collector(BaseHTTPRequestHandler):
    """An OTLP collector, and a backend that fails, at one address."""

    spans: ClassVar[list[tuple[str, Any]]] = []  # (service, span)
    metrics: ClassVar[dict[str, set[str]]] = {}
    asked: ClassVar[list[dict[str, str]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        status = 200
        if self.path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in group.scope_spans:
                    self.spans.extend((service_of(group), span) for span in scope.spans)
        elif self.path == "/v1/metrics":
            for found in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                names = [one.name for scope in found.scope_metrics for one in scope.metrics]
                self.metrics.setdefault(service_of(found), set()).update(names)
        else:
            self.asked.append({name.lower(): value for name, value in self.headers.items()})
            status = 500
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def service_of(group: Any) -> str:
    """The service that spans or metrics belong to."""
    found = {one.key: one.value.string_value for one in group.resource.attributes}
    return found["service.name"]


@pytest.fixture(scope="module")
def collector() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def until_seen(count: int) -> list[tuple[str, Any]]:
    """The spans, once there are so many."""
    deadline = time.monotonic() + 30
    while len(Collector.spans) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return Collector.spans


def test_a_trace_goes_from_the_client_over_both_attempts_to_the_engine(
    collector: str, tmp_path: Path
) -> None:
    make_model(tmp_path / "tiny")
    ports = (free_port(), free_port())
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    (tmp_path / "gateway.yaml").write_text(
        json.dumps(
            {
                "listen": f"127.0.0.1:{ports[1]}",
                "upstreams": {
                    "broken": {"url": collector, "role": "primary"},
                    "engine": {"url": f"http://127.0.0.1:{ports[0]}", "role": "standby"},
                },
                "rollout": {"last_resort": True},
                "monitor": {"devices": False, "backends": False},
            }
        )
    )
    engine = ("tiny", "--port", str(ports[0]), "--device", "cpu", "--no-probe")
    gateway = ("--config", "gateway.yaml", "--unverified")
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with process(*engine, cwd=tmp_path, **variables) as (one, said):
        wait_ready(urls[0], one, said)
        with process(*gateway, cwd=tmp_path, **variables) as (two, heard):
            wait_ready(urls[1], two, heard)
            body = {"model": "tiny", "messages": [{"role": "user", "content": "secret words"}],
                    "max_tokens": 3}  # fmt: skip
            status, _, raw = call(
                urls[1] + "/v1/chat/completions", json.dumps(body).encode(),
                {"traceparent": f"00-{TRACE}-{PARENT}-01"},
            )  # fmt: skip
            assert status == 200, raw
            until_seen(4)
    spans = [found for found in until_seen(4) if found[1].trace_id.hex() == TRACE]
    assert len(spans) == 4, "a shadowed copy is no part of the client's trace"
    by_name = {(service, span.name): span for service, span in spans}
    assert set(by_name) == {
        ("joymigrate-gateway", "chat tiny"),
        ("joymigrate-gateway", "attempt broken"),
        ("joymigrate-gateway", "attempt engine"),
        ("joymigrate-engine", "chat tiny"),
    }
    root = by_name["joymigrate-gateway", "chat tiny"]
    tried, good = (by_name["joymigrate-gateway", f"attempt {n}"] for n in ("broken", "engine"))
    served = by_name["joymigrate-engine", "chat tiny"]
    assert root.parent_span_id.hex() == PARENT
    assert tried.parent_span_id == good.parent_span_id == root.span_id
    assert served.parent_span_id == good.span_id
    assert attributes(tried)["http.response.status_code"] == 500
    assert attributes(tried)["error.type"]
    assert Collector.asked[0]["traceparent"] == f"00-{TRACE}-{tried.span_id.hex()}-01"
    usage = attributes(served)
    assert usage["gen_ai.operation.name"] == "chat"
    assert usage["gen_ai.usage.output_tokens"] == 3
    assert usage["http.response.status_code"] == 200
    assert "secret" not in str(spans), "no text of a request is sent"
    assert {"gen_ai.server.request.duration", "gen_ai.client.token.usage"} <= Collector.metrics[
        "joymigrate-engine"
    ]


def test_nothing_is_traced_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (telemetry.ENDPOINT, telemetry.TRACES, telemetry.METRICS):
        monkeypatch.delenv(name, raising=False)
    assert telemetry.open_telemetry("x") is None
    monkeypatch.setenv(telemetry.ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert telemetry.open_telemetry("x") is None


def test_packages_that_are_absent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv(telemetry.ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(JoyError, match=r"needs opentelemetry") as error:
        telemetry.open_telemetry("x")
    assert error.value.help is not None
    assert "joymigrate[otel]" in error.value.help


def test_a_collector_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setenv(telemetry.ENDPOINT, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(telemetry, "CLOSE_SECONDS", 0.3)
    made = telemetry.open_telemetry("x")
    assert made is not None
    trace = made.begin("POST", "/v1/completions", {})
    assert trace is not None
    trace.end(200, {"model": "m"})
    began = time.monotonic()
    asyncio.run(made.finish())
    assert time.monotonic() - began < 5
