"""Completes a broken stream on other backends, event by event, or says visibly that it cannot."""

from __future__ import annotations

import time
from typing import Any, Protocol

from aiohttp import web

from joymigrate.run.serve.evidence.failures import (
    ENDED_EARLY,
    INVALID_JSON,
    TOTAL,
    BackendFailure,
    of_status,
)
from joymigrate.run.serve.gateway import resume
from joymigrate.run.serve.gateway.attempt import UpstreamAttempt
from joymigrate.run.serve.gateway.backend import HttpAnswer
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.meters import GatewayMeters
from joymigrate.run.serve.gateway.settings import GatewayLimits
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.gateway.upstreams import Instance, Upstream
from joymigrate.run.serve.web.forms import broken_event

NOBODY = "no other backend is there to go on"


class Asking(Protocol):
    """Who asks the backends: the relay, as far as a takeover needs it."""

    limits: GatewayLimits
    meters: GatewayMeters

    async def begin(
        self, call: GatewayCall, tried: list[Instance], broken: UpstreamAttempt | None = None
    ) -> tuple[UpstreamAttempt | None, Any]:
        """The next attempt, or why there is none."""

    def asked(self, call: GatewayCall, upstream: Upstream) -> bytes | None:
        """The body for an upstream; None for the client's own."""


async def take_over(
    relay: Asking,
    response: web.StreamResponse,
    call: GatewayCall,
    broken: RelayedStream,
    tried: list[Instance],
    again: UpstreamAttempt | None = None,
) -> bool:
    """True when the client has a whole stream in the end; False after a visible error event.

    `again`: the broken attempt, where its server may be asked once more if there is no other.
    """
    whole = len(broken.ended) >= call.choices
    if call.api.resumes and broken.finished and whole:
        # Every token is there; only the mark was missing, or the usage.
        if not resume.wants_usage(call, broken) or await elsewhere(
            relay, response, call, broken, tried, again
        ):
            await response.write(resume.DONE)
        return True
    hindrance = resume.obstacle(call, broken)
    if hindrance is None:
        hindrance = await elsewhere(relay, response, call, broken, tried, again)
    if hindrance is None:
        return True
    why = f"the backend failed in the middle ({broken.failure})"
    told = f"{why}; it cannot be resumed: {hindrance}"
    await response.write(broken_event(call.api.form, told))
    return False


async def elsewhere(
    relay: Asking,
    response: web.StreamResponse,
    call: GatewayCall,
    sent: RelayedStream,
    tried: list[Instance],
    again: UpstreamAttempt | None,
) -> str | None:
    """Try the other backends in turn; None when one of them completed the stream."""
    hindrance = NOBODY
    while len(tried) < relay.limits.attempts:
        attempt, _ = await relay.begin(call, tried, again)
        if attempt is None:
            return hindrance
        ways = resume.continuations(call, sent, resumes=attempt.upstream.backend.resumes)
        if not ways:
            attempt.no_evidence("abandoned")
            return "what was sent cannot be compared with another answer"
        try:
            way = await go_on(relay, response, call, attempt, ways)
        except BackendFailure as failure:
            attempt.failed(failure.kind)
            again = attempt if failure.kind in ENDED_EARLY else None
            hindrance = f"the next one failed, too ({failure.kind})"
            if any(way.wrote for way in ways):
                return hindrance
        except resume.Diverged as diverged:
            attempt.no_evidence("abandoned")
            return str(diverged)
        except BaseException:
            attempt.no_evidence("abandoned")
            raise
        else:
            relay.meters.resumed.of(attempt.meters.name, way.way).add()
            return None
    return hindrance


async def go_on(
    relay: Asking,
    response: web.StreamResponse,
    call: GatewayCall,
    attempt: UpstreamAttempt,
    ways: list[resume.Continuation],
) -> resume.Continuation:
    """Relay the continuation to its end; raises `BackendFailure` or `Diverged`."""
    if ways[0].exhausted:
        attempt.no_evidence("abandoned")
        await response.write(resume.encode(resume.finish_event(call, ways[0].sent)))
        await response.write(resume.DONE)
        return ways[0]
    way, answer = await reopen(relay, call, attempt, ways)
    stream = RelayedStream(keep=True)
    until = attempt.started + relay.limits.total_seconds
    while not stream.done:
        received = await answer.read()
        if not received:
            failure = stream.end()
            if failure:
                raise BackendFailure(failure)
            break
        if attempt.first is None:
            attempt.begun()
        if time.perf_counter() > until:
            raise BackendFailure(TOTAL)
        stream.feed(received)
        for event in stream.events:
            try:
                converted = way.convert(event)
            except (AttributeError, IndexError, KeyError, TypeError) as odd:
                raise BackendFailure(INVALID_JSON, f"an event of another shape: {odd!r}") from None
            if converted is not None:
                way.wrote = True
                await response.write(resume.encode(converted))
        stream.events.clear()
        if stream.failure:
            raise BackendFailure(stream.failure)
    attempt.ok(stream.tokens, stream.prompt_tokens, close=False)
    try:
        await response.write(resume.DONE)
        await answer.finish()
    finally:
        answer.close()
    return way


async def reopen(
    relay: Asking, call: GatewayCall, attempt: UpstreamAttempt, ways: list[resume.Continuation]
) -> tuple[resume.Continuation, HttpAnswer]:
    """Ask in the first way that the backend accepts. Declining one is not a failure."""
    status = 0
    for way in ways:
        body = way.body if way.body is not None else relay.asked(call, attempt.upstream)
        answer = await attempt.open(way.path, body)
        status = answer.status
        if status >= 500:
            raise BackendFailure(of_status(status) or "", "on taking over")
        content = answer.headers.get("Content-Type", "")
        understood = way.needs is None or way.needs in answer.headers
        if status < 400 and understood and content.startswith("text/event-stream"):
            return way, answer
        answer.close()
    raise resume.Diverged(f"the other backend declined to go on (status {status})")
