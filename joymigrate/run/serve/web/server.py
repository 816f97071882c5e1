"""A service on an address: whole requests in, replies and streams out, a drain at the end."""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from aiohttp import web

from joymigrate.errors import JoyError
from joymigrate.run.serve.web import body, memory, messages
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import EVENTS, Ask, Reply
from joymigrate.run.serve.web.signals import until_ended
from joymigrate.run.serve.web.site import Front, Visit, WebSite

log = logging.getLogger("joymigrate.serve")
HIGH_WATER = 2**16  # bytes that wait for a slow reader before its patience is measured
TOKENS = ("prompt_tokens", "completion_tokens")  # among a request's notes
CLIENT_CLOSED = 499  # in the log only: who went away gets no answer
PACK_BYTES = 1024  # shorter answers are not worth packing


class Answering(Protocol):
    """What a server stands in front of."""

    draining: bool
    limits: HttpLimits
    keys: Keys

    async def answer(self, ask: Ask) -> Reply:
        """Answer a request; never raises but when it is cancelled."""
        ...

    def record(self, ask: Ask, status: int, *, gone: bool = False) -> None:
        """Count a request, and write it to the log."""
        ...

    async def close(self) -> None:
        """Stop what stands behind it."""
        ...


class Server:
    """A service on an address."""

    def __init__(
        self,
        service: Answering,
        host: str = "127.0.0.1",
        port: int = 8000,
        front: Front | None = None,
    ) -> None:
        self.service = service
        self.site = WebSite(self.serve, host, port, service.limits, service.keys, front)

    async def start(self) -> None:
        """Listen; raises `JoyError` when the address is taken."""
        await self.site.start()

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self.site.url

    async def stop(self, hurried: asyncio.Event | None = None) -> None:
        """Refuse new requests, let the running ones end, close. `hurried` ends the wait."""
        self.service.draining = True
        await self.site.drain(hurried)
        await self.site.close()
        await self.service.close()

    # One request

    async def serve(self, visit: Visit) -> web.StreamResponse:
        """Answer one request."""
        raw = visit.raw_path.partition("?")[0]
        ask = Ask(visit.method, raw, visit.headers, query=visit.query, called=visit.id)
        visit.notes = ask.notes
        limits, status, gone = self.service.limits, 500, False
        try:
            try:
                self.site.enter(visit)
                ask.body = await body.read(visit, limits.body_bytes, limits.body_seconds)
            except HttpRefusal as refusal:
                reply = messages.refuse(raw, refusal)
            else:
                if visit.key is not None and visit.key.name:
                    ask.notes["key"] = visit.key.name
                reply = await self.service.answer(ask)
            status = reply.status
            return await self.send(visit, reply)
        except (asyncio.CancelledError, ConnectionError):
            status, gone = CLIENT_CLOSED, True
            raise
        finally:
            visit.tokens = sum(ask.notes.get(name) or 0 for name in TOKENS)
            self.site.leave(visit)
            self.service.record(ask, status, gone=gone)

    async def send(self, visit: Visit, reply: Reply) -> web.StreamResponse:
        """Send a reply; a stream is closed however it ends."""
        headers = {"Content-Type": reply.content_type, **reply.headers}
        if self.service.draining:
            headers["Connection"] = "close"
        if isinstance(reply.body, bytes):
            packing = pack_body(visit, reply, headers)
            whole = web.Response(status=reply.status, body=packing, headers=headers)
            await whole.prepare(visit)
            await whole.write_eof()
            return whole
        if reply.content_type == EVENTS:
            headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(status=reply.status, headers=headers)
        pieces = reply.body
        try:
            await response.prepare(visit)
            async for piece in pieces:
                await self.write(visit, response, piece)
            await response.write_eof()
        finally:
            await pieces.aclose()
        return response

    async def write(self, visit: Visit, response: web.StreamResponse, piece: bytes) -> None:
        """Write a piece. A client that reads nothing for long is cut off: it holds blocks."""
        transport = visit.transport
        if transport is None:
            raise ConnectionResetError("the client went away")
        if transport.get_write_buffer_size() < HIGH_WATER:
            await response.write(piece)
            return
        patience = self.service.limits.stall_seconds
        try:
            await asyncio.wait_for(response.write(piece), patience)
        except (TimeoutError, asyncio.TimeoutError):
            transport.abort()
            raise ConnectionResetError(f"the client read nothing for {patience:g} s") from None


def pack_body(request: web.BaseRequest, reply: Reply, headers: dict[str, str]) -> bytes:
    """The body, packed for tensor clients that ask for it."""
    body = reply.body
    assert isinstance(body, bytes)
    wanted = request.headers.get("Accept-Encoding", "").lower()
    if not request.path.endswith("/infer") or len(body) < PACK_BYTES:
        return body
    if "gzip" in wanted:
        headers["Content-Encoding"] = "gzip"
        return gzip.compress(body, 1)
    if "deflate" in wanted:
        headers["Content-Encoding"] = "deflate"
        return zlib.compress(body, 1)
    return body


def reload_of(server: Server) -> Callable[[], None]:
    """What SIGHUP does: certificates and keys are read again."""

    def reload() -> None:
        try:
            server.site.reload()
        except JoyError as error:
            log.error("not reloaded, the old settings stay: %s", error)
            return
        log.info("reloaded")

    return reload


async def run(
    server: Server,
    opened: Callable[[], None] = lambda: None,
    failed: Callable[[], Coroutine[Any, Any, BaseException]] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends without waiting.

    Raises `JoyError` with what `failed` returns, when it does: the engine works no longer.
    """
    async with until_ended(reload_of(server)) as (ended, hurried):
        await server.start()
        opened()
        trimming = asyncio.ensure_future(memory.give_back())
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(ended.wait())]
        if failed is not None:
            waits.append(asyncio.ensure_future(failed()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not waits[0].done():
                raise JoyError(
                    f"the engine failed: {waits[1].result()}",
                    help="the log says where; start the server again",
                )
            log.info("stopping: running requests may end, new ones are refused")
        finally:
            for wait in (*waits, trimming):
                wait.cancel()
            began = time.monotonic()
            await server.stop(hurried)
            log.info("stopped after %.1f s", time.monotonic() - began)
