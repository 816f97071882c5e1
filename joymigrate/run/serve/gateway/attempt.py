"""One attempt of one request at one backend, from the free connection to its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.serve.evidence.events import Served
from joymigrate.run.serve.evidence.failures import OWN
from joymigrate.run.serve.gateway.backend import HttpAnswer
from joymigrate.run.serve.gateway.calls import GatewayCall, forward_headers
from joymigrate.run.serve.gateway.clock import tell_time
from joymigrate.run.serve.gateway.meters import UpstreamMeters
from joymigrate.run.serve.gateway.replies import passed_on
from joymigrate.run.serve.gateway.upstreams import Instance, Upstream
from joymigrate.run.serve.web.telemetry import RequestSpan, without_context

Details = Callable[[], dict[str, Any]]
Report = Callable[[Served, Details], None]


@dataclass(slots=True, eq=False)
class UpstreamAttempt:
    """Holds a connection of an upstream; ends exactly once, with what the backend did.

    An attempt that ended neither well nor badly (the client went away, back-pressure) is no
    evidence about the backend. Times are seconds on the process's clock.
    """

    call: GatewayCall
    upstream: Upstream
    instance: Instance
    meters: UpstreamMeters
    report: Report
    answer: HttpAnswer | None = None
    trace: RequestSpan | None = None
    first: float | None = None  # when the first byte came
    started: float = field(default_factory=time.perf_counter)
    ended: bool = False
    tokens: int = 0
    ended_at: float = 0.0

    def __post_init__(self) -> None:
        self.instance.inflight += 1

    async def open(self, path: str | None = None, body: bytes | None = None) -> HttpAnswer:
        """Send the client's request, or another `body` to another `path`; raises `Broken`."""
        call = self.call
        headers = forward_headers(call, self.upstream.settings)
        if call.trace is not None:
            self.trace = call.trace.attempt(self.meters.name, self.instance.url)
            headers = without_context(headers) | self.trace.headers()
        self.answer = await self.upstream.backend.open(
            self.instance.url,
            call.method,
            call.path if path is None else path,
            headers,
            call.body if body is None else body,
            self.upstream.patience(call.api.name, whole=not call.asked.get("stream")),
        )
        if self.trace is not None:
            self.trace.answered(self.answer.status)
        return self.answer

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers, as the client gets them."""
        assert self.answer is not None
        return passed_on(self.answer.headers, self.meters.name)

    def begun(self) -> None:
        """The first byte of the body came."""
        self.first = time.perf_counter()
        assert self.answer is not None
        self.answer.started()

    def ok(self, tokens: int = 0, prompt_tokens: int = 0, *, close: bool = True) -> None:
        """The backend did its work. Without `close` the caller still reads the answer's end."""
        if self.ended:
            return
        now, meters, call = time.perf_counter(), self.meters, self.call
        if not call.asked.get("stream"):
            self.upstream.learn(call.api.name, now - self.started)
        meters.ends["ok"].value += 1
        meters.request.add(now - call.started)
        if self.first is not None:
            meters.ttft.add(self.first - call.started)
            if tokens > 1:
                meters.tpot.add((now - self.first) / (tokens - 1))
        meters.generated.value += tokens
        meters.prompt.value += prompt_tokens
        if not close:
            self.answer = None
        self.end(None, tokens, now)

    def failed(self, kind: str) -> None:
        """The backend failed. The rollout hears of it at once, unless it was this machine."""
        if self.ended:
            return
        if kind == OWN:
            self.no_evidence("unjudged")
            return
        self.meters.ends["failed"].value += 1
        if self.trace is not None:
            self.trace.error(kind)
        self.meters.failures.of(self.meters.name, kind).add()
        self.end(kind, 0, time.perf_counter())

    def refused(self) -> None:
        """The backend would not, or had nothing to say: a witness judges it (`condemn`)."""
        if not self.ended:
            self.meters.ends["refused"].value += 1
            self.let_go()

    def condemn(self, kind: str) -> None:
        """A witness answered what this backend refused: that was a failure."""
        self.meters.failures.of(self.meters.name, kind).add()
        self.tell(kind, 0, time.perf_counter())

    def no_evidence(self, how: str) -> None:
        """It ended without saying anything about the backend: `busy`, `abandoned`, `unjudged`."""
        if not self.ended:
            self.meters.ends[how].value += 1
            self.let_go()

    def end(self, failure: str | None, tokens: int, now: float) -> None:
        self.let_go()
        self.tell(failure, tokens, now)

    def tell(self, failure: str | None, tokens: int, now: float) -> None:
        if self.call.method != "POST":
            return  # a list of models is no evidence about the models
        self.tokens, self.ended_at = tokens, now
        served = Served(tell_time(), self.upstream.role, failure, 1, self.instance.url,
                        who=self.call.who)  # fmt: skip
        self.report(served, self.details)

    def details(self) -> dict[str, Any]:
        """What the request log says beside the outcome."""
        started = self.call.started
        return {
            "path": self.call.path,
            "upstream": self.meters.name,
            "seconds": self.ended_at - started,
            "first_byte_seconds": self.first - started if self.first else None,
            "tokens": self.tokens,
        }

    def let_go(self) -> None:
        """Give the connection back."""
        self.ended = True
        if self.trace is not None:
            self.trace.leave()
        self.instance.inflight -= 1
        self.upstream.release()
        if self.answer is not None:
            self.answer.close()
