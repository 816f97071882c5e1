"""Carries one request to a backend and its answer back, over to another backend where needed.

Before the first byte a failed attempt is repeated elsewhere without the client noticing. Behind
it, a broken stream is taken over exactly (see `takeover`) or ends in a visible error event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from joymigrate.run.serve.gateway import whole
from joymigrate.run.serve.gateway.attempt import Attempt, Report
from joymigrate.run.serve.gateway.backend import Answer
from joymigrate.run.serve.gateway.calls import OTHER, Call
from joymigrate.run.serve.gateway.failures import (
    TOTAL,
    TRUNCATED,
    Broken,
    is_back_pressure,
    of_status,
)
from joymigrate.run.serve.gateway.meters import Meters, UpstreamMeters
from joymigrate.run.serve.gateway.replies import error, passed_on
from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.gateway.settings import Limits
from joymigrate.run.serve.gateway.stream import Stream
from joymigrate.run.serve.gateway.takeover import take_over
from joymigrate.run.serve.gateway.upstreams import Instance, Overloaded, Upstream

ANSWER_BYTES = 64 * 2**20  # larger answers are relayed without being judged
GONE = (ConnectionError,)


class Relayed(web.StreamResponse):
    """A stream whose headers travel with its first bytes: one system call less per request."""

    _send_headers_immediately = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What the client was told, for the shadow to compare with."""

    upstream: Upstream
    text: str
    finish: str | None
    seconds: float
    first_byte_seconds: float | None


@dataclass(slots=True)
class Refused:
    """Why an attempt came to nothing, and the backend's own words where it had some."""

    kind: str
    reply: web.Response | None = None


@dataclass(slots=True)
class Relay:
    """Everything that one request needs."""

    router: Router
    meters: Meters
    by_name: dict[str, UpstreamMeters]
    limits: Limits
    report: Report
    heard: Callable[[Call, Heard], None] | None = None

    async def answer(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Answer the client. Counts what the client got."""
        tried: list[Instance] = []
        last: Refused | None = None
        while len(tried) < self.limits.attempts:
            attempt, refused = await self.begin(call, tried)
            last = refused or last
            if attempt is None:
                break
            if len(tried) > 1:
                self.meters.retries.of(attempt.meters.name).add()
            try:
                result = await self.first(request, call, attempt, tried)
            except asyncio.CancelledError:
                self.went_away(call, attempt)
                raise
            except BaseException:
                attempt.no_evidence("abandoned")
                raise
            if isinstance(result, web.StreamResponse):
                return result
            last = result
        return self.give_up(call, last)

    async def begin(
        self, call: Call, tried: list[Instance]
    ) -> tuple[Attempt | None, Refused | None]:
        """A place at the next backend, or None when there is none left; and who was too busy."""
        busy: Refused | None = None
        while True:
            chosen = self.router.choose(call.point, tried)
            if chosen is None:
                return None, busy
            upstream, instance = chosen
            tried.append(instance)
            try:
                await upstream.acquire()
            except Overloaded as overload:
                busy = Refused("overloaded", error(503, str(overload), "overloaded", RETRY))
                continue
            if not self.router.allowed(upstream):
                upstream.release()  # the rollout decided while this request waited
                continue
            meters = self.by_name[upstream.name]
            return Attempt(call, upstream, instance, meters, self.report), busy

    async def first(
        self, request: web.BaseRequest, call: Call, attempt: Attempt, tried: list[Instance]
    ) -> web.StreamResponse | Refused:
        """One attempt up to its first byte, and on to the end when that came."""
        try:
            answer = await attempt.open(body=self.asked(call, attempt.upstream))
            if is_back_pressure(answer.status, answer.headers):
                reply = await self.rejection(answer, attempt)
                attempt.no_evidence("busy")
                return Refused("busy", reply)
            failure = of_status(answer.status)
            if failure:
                reply = await self.rejection(answer, attempt)
                attempt.failed(failure)
                return Refused(failure, reply)
            content = answer.headers.get("Content-Type", "")
            readable = answer.headers.get("Content-Encoding", "identity") == "identity"
            if readable and is_stream(call, answer.status, content):
                return await self.streamed(request, call, attempt, answer, tried)
            if answer.status < 400 and ("json" not in content or not readable):
                return await self.raw(request, call, attempt, answer)
            return await self.in_one_piece(call, attempt, answer)
        except Broken as broken:
            attempt.failed(broken.kind)
            return Refused(broken.kind)

    def asked(self, call: Call, upstream: Upstream) -> bytes | None:
        """The body for a backend that is asked for token ids; None for the client's own."""
        if upstream.settings.token_ids != "ask" or not (call.parsed or {}).get("stream"):
            return None
        return orjson.dumps({**(call.parsed or {}), "return_token_ids": True})

    async def rejection(self, answer: Answer, attempt: Attempt) -> web.Response:
        """A backend's own error, kept for the client in case no other backend does better."""
        try:
            body = await read_all(answer, ANSWER_BYTES)
        except Broken:
            body = b""
        return web.Response(
            status=answer.status,
            body=body,
            headers=passed_on(answer.headers, attempt.meters.name),
        )

    async def in_one_piece(
        self, call: Call, attempt: Attempt, answer: Answer
    ) -> web.StreamResponse:
        """An answer that is judged as a whole before the client sees any of it."""
        body = await read_all(answer, ANSWER_BYTES, attempt)
        good = answer.status < 400
        parsed: dict[str, Any] = {}
        if good and call.kind != OTHER:
            parsed = whole.judge(body, strict=call.strict)
        attempt.ok(*whole.usage_of(parsed))
        self.settle(call, "ok" if good else "client_error")
        if good and self.heard is not None:
            self.tell(call, attempt, whole.text_of(parsed), whole.finish_of(parsed))
        return web.Response(
            status=answer.status,
            body=body,
            headers=passed_on(answer.headers, attempt.meters.name),
        )

    async def raw(
        self, request: web.BaseRequest, call: Call, attempt: Attempt, answer: Answer
    ) -> web.StreamResponse:
        """Bytes of another kind (audio, text): relayed as they come, cut visibly when they end."""
        block = await answer.read()
        attempt.begun()
        response = Relayed(
            status=answer.status, headers=passed_on(answer.headers, attempt.meters.name)
        )
        try:
            await response.prepare(request)
            while block:
                await response.write(block)
                block = await answer.read()
            await response.write_eof()
        except Broken as broken:
            attempt.failed(broken.kind)
            self.settle(call, "interrupted")
            if request.transport is not None:
                request.transport.abort()
            return response
        except GONE:
            self.went_away(call, attempt)
            return response
        attempt.ok()
        self.settle(call, "ok")
        return response

    async def streamed(
        self,
        request: web.BaseRequest,
        call: Call,
        attempt: Attempt,
        answer: Answer,
        tried: list[Instance],
    ) -> web.StreamResponse | Refused:
        """A stream of events. Nothing goes to the client before the first good event."""
        stream = Stream(strict=call.strict)
        block = b""
        while not block:
            received = await answer.read()
            if not received:
                raise Broken(stream.end() or TRUNCATED, "no event")
            if attempt.first is None:
                attempt.begun()
            block = stream.feed(received)
            if stream.failure and not block:
                raise Broken(stream.failure)
        response = Relayed(
            status=answer.status, headers=passed_on(answer.headers, attempt.meters.name)
        )
        try:
            await response.prepare(request)
            until = call.started + self.limits.total_seconds
            failure, block = await pump(answer, stream, response, block, until)
            if failure:
                attempt.failed(failure)
                whole_again = await take_over(self, response, call, stream, tried)
                self.settle(call, "ok" if whole_again else "interrupted")
                await response.write_eof()
                return response
            self.settle(call, "ok")
            if self.heard is not None:
                finish = stream.finish[0] if stream.finish else None
                self.tell(call, attempt, "".join(stream.pieces), finish)
            attempt.ok(stream.tokens, stream.prompt_tokens, close=False)
            try:
                await response.write_eof(block)
                await answer.finish()
            finally:
                answer.close()
        except GONE:
            self.went_away(call, attempt)
            return response
        return response

    def tell(self, call: Call, attempt: Attempt, text: str, finish: str | None) -> None:
        """Hand a good answer to the shadow. It works later and elsewhere."""
        if self.heard is not None:
            now = time.perf_counter()
            first = attempt.first - call.started if attempt.first else None
            self.heard(call, Heard(attempt.upstream, text, finish, now - call.started, first))

    def went_away(self, call: Call, attempt: Attempt) -> None:
        """The client closed the connection: nobody's failure."""
        attempt.no_evidence("abandoned")
        self.settle(call, "client_closed")

    def settle(self, call: Call, outcome: str) -> None:
        """Count what the client got, once."""
        if not call.settled:
            call.settled = True
            self.meters.outcomes[outcome].value += 1

    def give_up(self, call: Call, last: Refused | None) -> web.StreamResponse:
        """No backend could answer: the last one's own words, or the gateway's."""
        rejected = last is not None and last.kind in ("busy", "overloaded")
        self.settle(call, "rejected" if rejected else "error")
        if last is not None and last.reply is not None:
            return last.reply
        why = f"the last one failed with {last.kind}" if last else "none may be used"
        return error(502, f"no backend could answer: {why}", last.kind if last else "no_backend")


def is_stream(call: Call, status: int, content: str) -> bool:
    """Whether an answer is a stream of events. Some servers forget to say so."""
    if content.startswith("text/event-stream"):
        return True
    asked = call.strict and bool((call.parsed or {}).get("stream"))
    return asked and status < 400 and "json" not in content


RETRY = {"Retry-After": "1"}


async def pump(
    answer: Answer, stream: Stream, response: web.StreamResponse, block: bytes, until: float
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
        except Broken as broken:
            stream.failure = broken.kind
            return broken.kind, b""
        if not received:
            return stream.end(), b""
        if time.perf_counter() > until:
            stream.failure = TOTAL
            return TOTAL, b""
        block = stream.feed(received)


async def read_all(answer: Answer, limit_bytes: int, attempt: Attempt | None = None) -> bytes:
    """A whole body; raises `Broken` when it is larger than any answer should be."""
    parts: list[bytes] = []
    size = 0
    while True:
        part = await answer.read()
        if not part:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if not parts and attempt is not None:
            attempt.begun()
        size += len(part)
        if size > limit_bytes:
            raise Broken("oversized", f"more than {limit_bytes} bytes")
        parts.append(part)
