"""What a relay holds of an answer while it is relayed, and how its bytes go on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from aiohttp import web

from joymigrate.run.serve.evidence.answers import BackendReply
from joymigrate.run.serve.evidence.failures import TOTAL, BackendFailure
from joymigrate.run.serve.gateway.attempt import UpstreamAttempt
from joymigrate.run.serve.gateway.backend import HttpAnswer
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.gateway.upstreams import Upstream

GONE = (ConnectionError,)


class Relayed(web.StreamResponse):
    """A stream whose headers travel with its first bytes: one system call less per request."""

    _send_headers_immediately = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What the client was told, for the shadow to compare with."""

    upstream: Upstream
    said: BackendReply
    comparable: bool = True  # the words are all that was said


@dataclass(slots=True)
class RefusedAttempt:
    """Why an attempt came to nothing, and the backend's own words where it had some."""

    kind: str
    reply: web.Response | None = None
    attempt: UpstreamAttempt | None = None  # one that a witness has still to judge


def is_stream(call: GatewayCall, status: int, content: str) -> bool:
    """Whether an answer is a stream of events. Some servers forget to say so."""
    if content.startswith("text/event-stream"):
        return True
    asked = call.strict and bool((call.parsed or {}).get("stream"))
    return asked and status < 400 and "json" not in content


async def pump(
    answer: HttpAnswer,
    stream: RelayedStream,
    response: web.StreamResponse,
    block: bytes,
    until: float,
) -> tuple[str | None, bytes]:
    """Relay a stream to its end: the failure that ended it, or None and the last block.

    The last block is left to the caller, who sends it together with the end of the answer.
    """
    while True:
        if stream.done:
            return None, block
        if block:
            await response.write(block)
        if stream.failure:
            return stream.failure, b""
        try:
            received = await answer.read()
        except BackendFailure as broken:
            stream.failure = broken.kind
            return broken.kind, b""
        if not received:
            return stream.end(), b""
        if time.perf_counter() > until:
            stream.failure = TOTAL
            return TOTAL, b""
        block = stream.feed(received)


async def read_all(
    answer: HttpAnswer,
    limit_bytes: int,
    attempt: UpstreamAttempt | None = None,
    until: float = math.inf,
) -> bytes:
    """A whole body; raises `BackendFailure` when it is larger than any answer should be, or not
    there `until` then."""
    parts: list[bytes] = []
    size = 0
    while True:
        part = await answer.read()
        if not part:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if not parts and attempt is not None:
            attempt.begun()
        size += len(part)
        if time.perf_counter() > until:
            raise BackendFailure(TOTAL)
        if size > limit_bytes:
            raise BackendFailure("oversized", f"more than {limit_bytes} bytes")
        parts.append(part)
