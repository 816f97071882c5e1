"""A handler on an address: listening, who comes in, and a drain whose deadline is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import getrandbits
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from joymigrate.run.serve.web import address, tls
from joymigrate.run.serve.web.apis import OPEN
from joymigrate.run.serve.web.connections import Connections
from joymigrate.run.serve.web.cors import Cors
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.telemetry import RequestSpan, Telemetry

log = logging.getLogger("joymigrate.serve")
BACKLOG = 4096
LINGER_SECONDS = 1.0  # a refused body is read on for so long, so that its sender sees the answer
CUT_SECONDS = 0.2  # what a connection gets to close once the drain is over
LAST_SECONDS = 1.0  # what a connection that was taken gets to send its request before the end
SWEEP_SECONDS = 0.5  # how often slow heads are looked for
GONE = 499  # in traces only: who went away gets no answer
GOOD_ID = re.compile(r"[!-~]{1,128}")


class Visit(web.BaseRequest):
    """A request with its id, its key, and headers that every answer to it gets."""

    id: str
    key: Key | None = None  # while it runs
    key_name: str = ""
    tokens: int = 0  # of the prompt and the answer, as far as somebody counted
    trace: RequestSpan | None = None
    notes: Mapping[str, Any] = MappingProxyType({})  # the request log's, for the trace
    extra: dict[str, str]

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.update(self.extra)


@dataclass(frozen=True, slots=True)
class Front:
    """How a server shows itself: over TLS or not, and to which pages of other origins."""

    tls: tls.Tls | None = None
    cors: Cors = field(default_factory=Cors)
    file: str | None = None  # that says where to listen, for errors
    read_keys: Callable[[], tuple[Key, ...]] | None = None  # again, when SIGHUP comes


class WebSite:
    """An address with a handler behind it, which calls `enter` and `leave` for each request."""

    def __init__(
        self,
        handle: Callable[[Visit], Awaitable[web.StreamResponse]],
        host: str,
        port: int,
        limits: HttpLimits,
        keys: Keys,
        front: Front | None = None,
    ) -> None:
        self.handle, self.host, self.port = handle, host, port
        self.limits, self.keys, self.front = limits, keys, front or Front()
        self.context: ssl.SSLContext | None = None
        self.telemetry: Telemetry | None = None
        self.active = self.cut_off = 0  # requests that run; those that a drain did not wait for
        self.draining = False
        self.idle = asyncio.Event()
        self.runner: web.ServerRunner | None = None
        self.sweeper: asyncio.Task[None] | None = None
        self.connections: Connections | None = None
        self.taken: list[Any] = []

    # Life

    def take(self) -> None:
        """Bind to the address, answer nobody yet; raises `JoyError` when it is taken."""
        if self.front.tls is not None:
            self.context = tls.of_server(self.front.tls)
        self.taken = address.take(self.host, self.port, self.front.file)

    async def start(self) -> None:
        """Listen; raises `JoyError` when the address is taken."""
        if not self.taken:
            self.take()
        raise_file_limit()
        self.connections = server = Connections(
            self.serve,
            request_factory=self.visit,
            handler_cancellation=True,
            access_log=None,
            max_line_size=self.limits.header_bytes,
            max_field_size=self.limits.header_bytes,
            lingering_time=LINGER_SECONDS,
            logger=logging.getLogger("joymigrate.serve.http"),
        )
        logging.getLogger("joymigrate.serve.http").setLevel(logging.CRITICAL)
        self.runner = web.ServerRunner(server, shutdown_timeout=CUT_SECONDS)
        await self.runner.setup()
        for bound in self.taken:
            site = web.SockSite(self.runner, bound, ssl_context=self.context, backlog=BACKLOG)
            await site.start()
        self.port = self.runner.addresses[0][1]
        self.sweeper = asyncio.get_running_loop().create_task(self.sweep(server))
        if not self.keys.keys and not self.private:
            log.warning(
                "%s is reachable from other machines, and no key is asked for: everybody may use "
                "this server", self.url,
            )  # fmt: skip

    @property
    def private(self) -> bool:
        """Whether only this machine, or only holders of a certificate, can reach it."""
        certified = self.front.tls is not None and self.front.tls.ca is not None
        return certified or address.is_loopback(self.host)

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.front.tls else 'http'}://{host}:{self.port}"

    async def sweep(self, server: Connections) -> None:
        """Close connections whose heads take too long, for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + min(SWEEP_SECONDS, self.limits.header_seconds / 2)
            await asyncio.sleep(due - clock())
            dropped = server.drop_slow_heads(self.limits.header_seconds, clock() - due)
            if dropped:
                log.info("%d connections closed: no request in %g s", dropped,
                         self.limits.header_seconds)  # fmt: skip

    def reload(self) -> None:
        """Read certificates and keys again; raises `JoyError`, and the old ones stay."""
        keys = self.front.read_keys() if self.front.read_keys is not None else None
        if self.context is not None and self.front.tls is not None:
            tls.of_server(self.front.tls)  # a mistake shows before the live context is touched
            tls.load(self.context, self.front.tls)
        if keys is not None:
            self.keys.replace(keys)

    async def drain(self, hurried: asyncio.Event | None = None) -> None:
        """Wait for the running requests, `drain_seconds` at most; `hurried` ends the wait.

        The handler refuses new requests meanwhile: it sees `draining`.
        """
        self.draining = True
        limit = self.limits.drain_seconds
        if not self.active or (hurried is not None and hurried.is_set()):
            self.cut_off = self.active
            return
        log.info("draining: %d requests may end within %g s", self.active, limit)
        self.idle.clear()
        waits = [asyncio.ensure_future(self.idle.wait())]
        if hurried is not None:
            waits.append(asyncio.ensure_future(hurried.wait()))
        await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self.cut_off = self.active
        if self.active:
            log.warning("%d requests are cut off", self.active)

    async def close(self) -> None:
        """Close every connection, and the address."""
        if self.sweeper is not None:
            self.sweeper.cancel()
            await asyncio.gather(self.sweeper, return_exceptions=True)
        if self.runner is not None:
            await self.answer_last(self.runner)
            await self.runner.cleanup()
        else:
            for bound in self.taken:
                bound.close()
        if self.telemetry is not None:
            await self.telemetry.finish()

    async def answer_last(self, runner: web.ServerRunner) -> None:
        """Take no more connections. Who was taken, or waits in the system's queue to be, and is
        sending a request gets an answer to it: a connection that ends without one is no refusal."""
        assert self.connections is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + LAST_SECONDS
        listeners = [bound.dup() for bound in self.taken]
        self.taken = []
        for site in list(runner.sites):
            await site.stop()
        opening = [
            loop.create_task(
                loop.connect_accepted_socket(self.connections, connection, ssl=self.context)
            )
            for listener in listeners
            for connection in address.end(listener)
        ]
        if opening:
            await asyncio.wait(opening, timeout=LAST_SECONDS)
        await asyncio.sleep(0.01)  # who was just taken is none of the server's connections yet
        while self.connections.busy > self.cut_off and loop.time() < until:
            await asyncio.sleep(0.01)

    # One request

    def visit(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        """A request whose body may be as large as the limits say, also unpacked."""
        made = Visit(
            message, payload, protocol, writer, task, protocol._loop,
            client_max_size=self.limits.body_bytes,
        )  # fmt: skip
        asked = made.headers.get("X-Request-Id", "")
        made.id = asked if GOOD_ID.fullmatch(asked) else f"{getrandbits(128):032x}"
        made.extra = {"X-Request-Id": made.id}
        if self.front.cors.origins:
            made.extra |= self.front.cors.answer(made.headers)
        if self.draining:
            made.extra["Connection"] = "close"
        return made

    async def serve(self, visit: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        assert isinstance(visit, Visit)
        if visit.method == "OPTIONS":
            found = self.front.cors.preflight(visit.method, visit.headers)
            if found is not None:
                visit.extra |= found
                return web.Response(status=204)
        if self.telemetry is not None:
            path = visit.raw_path.partition("?")[0]
            visit.trace = self.telemetry.begin(visit.method, path, visit.headers)
        self.active += 1
        status = GONE
        try:
            reply = await self.handle(visit)
            status = reply.status
            return reply
        finally:
            if visit.trace is not None:
                visit.trace.end(status, visit.notes)
            self.active -= 1
            if not self.active:
                self.idle.set()

    def enter(self, visit: Visit) -> None:
        """Let a request in; raises `HttpRefusal` (400, 401, 429). `leave` follows in any case."""
        for name, value in visit.raw_headers:
            if not value.isascii() and not is_text(value):
                raise HttpRefusal(
                    400, f"the header {name.decode('ascii', 'replace')} is not UTF-8",
                    code="invalid_header",
                )  # fmt: skip
        if not self.keys.keys:
            return
        path = unquote(visit.raw_path.partition("?")[0])
        key = self.keys.check(path, visit.headers)
        if key is not None and path not in OPEN:
            self.keys.enter(key, time.monotonic())
            visit.key, visit.key_name = key, key.name

    def leave(self, visit: Visit) -> None:
        """A request has ended."""
        if visit.key is not None:
            self.keys.leave(visit.key, visit.tokens)
            visit.key = None


def is_text(raw: bytes) -> bool:
    """Whether bytes are UTF-8."""
    with contextlib.suppress(UnicodeDecodeError):
        raw.decode()
        return True
    return False


def raise_file_limit() -> None:
    """As many open files as this process may have: a stream through a gateway holds two."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
