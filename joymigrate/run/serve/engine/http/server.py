"""The sockets around `app.answer`: bodies in, replies and streams out, a drain at the end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import signal
import socket
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

import aiohttp
from aiohttp import web, web_protocol

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.http import app, errors
from joymigrate.run.serve.engine.http.admission import Keys, Limits
from joymigrate.run.serve.engine.http.errors import Refusal
from joymigrate.run.serve.engine.http.messages import EVENTS, Ask, Reply, dumps

log = logging.getLogger("joymigrate.serve")
HIGH_WATER = 2**16  # bytes that wait for a slow reader before its patience is measured
BACKLOG = 1024
HEADER_BYTES = 2**15
CLIENT_CLOSED = 499  # in the log only: who went away gets no answer
UNREADABLE = (
    aiohttp.ClientError,
    aiohttp.http_exceptions.HttpProcessingError,
    web_protocol.RequestPayloadError,
)
LINGER_SECONDS = 1.0  # a refused body is read on for so long, so that its sender sees the answer
PACK_BYTES = 1024  # shorter answers are not worth packing


class Answering(Protocol):
    """What a server stands in front of: a `Service`, or a `Proxy`."""

    draining: bool
    limits: Limits
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


class JsonErrors(web_protocol.RequestHandler):
    """A connection that answers in JSON also what is no HTTP."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was under way")
        phrase = HTTPStatus(status).phrase
        said = (message or phrase).strip().splitlines()[0] if status < 500 else phrase
        refusal = Refusal(status, f"{phrase}: {said}", code="bad_request" if status < 500 else None)
        response = web.Response(
            status=status, body=dumps(errors.openai(refusal)), content_type="application/json"
        )
        response.force_close()
        return response


class Connections(web.Server):
    """aiohttp's server with those connections."""

    def __call__(self) -> web_protocol.RequestHandler:
        return JsonErrors(self, loop=self._loop, **self._kwargs)


class Server:
    """A service on an address."""

    def __init__(self, service: Answering, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.service, self.host, self.port = service, host, port
        self.runner: web.ServerRunner | None = None
        self.active = 0
        self.idle = asyncio.Event()

    async def start(self) -> None:
        """Listen; raises `JoyError` when the address is taken."""
        server = Connections(
            self.serve,
            request_factory=self.request,
            handler_cancellation=True,
            access_log=None,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
            lingering_time=LINGER_SECONDS,
            logger=logging.getLogger("joymigrate.serve.http"),
        )
        logging.getLogger("joymigrate.serve.http").setLevel(logging.CRITICAL)
        self.runner = web.ServerRunner(server)
        await self.runner.setup()
        try:
            site = web.TCPSite(self.runner, self.host, self.port, backlog=BACKLOG)
            await site.start()
        except (OSError, socket.gaierror) as error:
            await self.runner.cleanup()
            raise JoyError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}",
                help="choose another one with --port, or stop what uses it",
            ) from None
        self.port = self.runner.addresses[0][1]

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def stop(self, ended: asyncio.Event | None = None) -> None:
        """Refuse new requests, let the running ones end, close. `ended` hurries it."""
        self.service.draining = True
        limit = self.service.limits.drain_seconds
        if self.active:
            log.info("draining: %d requests may end within %g s", self.active, limit)
            self.idle.clear()
            waits = [asyncio.ensure_future(self.idle.wait())]
            if ended is not None:
                waits.append(asyncio.ensure_future(ended.wait()))
            await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        if self.runner is not None:
            await self.runner.cleanup()
        await self.service.close()

    # One request

    def request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        """A request whose body may be as large as the limits say, also unpacked."""
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            asyncio.get_running_loop(),
            client_max_size=self.service.limits.body_bytes,
        )

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        self.active += 1
        raw = request.raw_path.partition("?")[0]
        ask = Ask(request.method, raw, request.headers, query=request.query)
        status, gone = 500, False
        try:
            try:
                self.service.keys.check(unquote(raw), request.headers)
                ask.body = await self.body(request)
            except Refusal as refusal:
                reply = app.refused(raw, refusal)
            else:
                reply = await self.service.answer(ask)
            status = reply.status
            return await self.send(request, ask, reply)
        except (asyncio.CancelledError, ConnectionError):
            status, gone = CLIENT_CLOSED, True
            raise
        finally:
            self.active -= 1
            if not self.active:
                self.idle.set()
            self.service.record(ask, status, gone=gone)

    async def body(self, request: web.BaseRequest) -> bytes:
        """Read the body within the limits; raises `Refusal`."""
        limits = self.service.limits
        if not request.body_exists:
            return b""
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip", "deflate", ""):
            raise Refusal(415, f"a body comes plain, gzip or deflate, not {encoding}")
        try:
            declared = request.content_length
        except ValueError:
            raise Refusal(400, "Content-Length is no number") from None
        if declared is not None and declared > limits.body_bytes:
            raise too_large(limits.body_bytes)
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        try:
            return await asyncio.wait_for(request.read(), limits.body_seconds)
        except web.HTTPRequestEntityTooLarge:
            raise too_large(limits.body_bytes) from None
        except (TimeoutError, asyncio.TimeoutError):
            raise Refusal(408, f"the body did not arrive in {limits.body_seconds:g} s") from None
        except UNREADABLE as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise Refusal(400, f"the body cannot be read: {said}", code="invalid_body") from None

    async def send(self, request: web.BaseRequest, ask: Ask, reply: Reply) -> web.StreamResponse:
        """Send a reply; a stream is closed however it ends."""
        headers = {"Content-Type": reply.content_type, **reply.headers}
        if self.service.draining:
            headers["Connection"] = "close"
        if isinstance(reply.body, bytes):
            body = packed(request, reply, headers)
            whole = web.Response(status=reply.status, body=body, headers=headers)
            await whole.prepare(request)
            await whole.write_eof()
            return whole
        if reply.content_type == EVENTS:
            headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(status=reply.status, headers=headers)
        pieces = reply.body
        try:
            await response.prepare(request)
            async for piece in pieces:
                await self.write(request, response, piece)
            await response.write_eof()
        finally:
            await pieces.aclose()
        return response

    async def write(
        self, request: web.BaseRequest, response: web.StreamResponse, piece: bytes
    ) -> None:
        """Write a piece. A client that reads nothing for long is cut off: it holds blocks."""
        transport = request.transport
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


def too_large(limit: int) -> Refusal:
    """413."""
    return Refusal(413, f"a body has at most {limit} bytes")


def packed(request: web.BaseRequest, reply: Reply, headers: dict[str, str]) -> bytes:
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


@contextlib.asynccontextmanager
async def until_ended() -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Events that SIGINT or SIGTERM set: the first signal one, the second the other."""
    ended, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        (hurried if ended.is_set() else ended).set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for name in signals:
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(name, end)
    try:
        yield ended, hurried
    finally:
        for name in signals:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(name)


async def run(
    server: Server,
    opened: Callable[[], None] = lambda: None,
    failed: Callable[[], Coroutine[Any, Any, BaseException]] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends without waiting.

    Raises `JoyError` with what `failed` returns, when it does: the engine works no longer.
    """
    async with until_ended() as (ended, hurried):
        await server.start()
        opened()
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
            for wait in waits:
                wait.cancel()
            began = time.monotonic()
            await server.stop(hurried)
            log.info("stopped after %.1f s", time.monotonic() - began)
