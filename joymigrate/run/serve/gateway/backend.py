"""One attempt at a backend: send a request, read the answer piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from joymigrate.run.serve.evidence.failures import (
    CONNECT,
    FIRST_BYTE,
    IDLE,
    OWN,
    RESET,
    TRUNCATED,
    BackendFailure,
)
from joymigrate.run.serve.gateway.pulse import TIMEOUTS, Pulse
from joymigrate.run.serve.gateway.settings import GatewayLimits, UpstreamSettings

# Of one connection, or for the gateway alone; answers must be readable to be judged.
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
     "trailers", "transfer-encoding", "upgrade", "host", "content-length", "accept-encoding",
     "expect")
)  # fmt: skip
ENGINE = "X-Joymigrate-Engine"  # a header of joymigrate's engine
READ_BYTES = 2**18
ADDRESSES = 1024
END_SECONDS = 0.25  # a server that holds its connection open after the end must not hold us


class HttpAnswer:
    """What a backend answers. Bytes arrive as the backend sends them."""

    __slots__ = ("begun", "content", "headers", "limits", "pinged", "pulse", "response", "status")

    def __init__(self, response: Any, limits: GatewayLimits, pulse: Pulse) -> None:
        self.response = response
        self.content = response.content
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.limits, self.pulse = limits, pulse
        self.begun = False
        self.pinged: float | None = None  # since when there is nothing but comments

    async def read(self) -> bytes:
        """The next bytes, `b""` at the orderly end; raises `BackendFailure`."""
        import aiohttp

        try:
            data: bytes = await self.content.readany()
        except aiohttp.ServerTimeoutError as error:
            if self.begun:
                raise late(IDLE, self.limits.idle_seconds, self.pulse, error) from None
            raise late(FIRST_BYTE, self.limits.first_byte_seconds, self.pulse, error) from None
        except aiohttp.ClientPayloadError as error:
            raise BackendFailure(TRUNCATED, str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise BackendFailure(RESET, str(error)) from None
        if data[:1] == b":":
            self.check_ping(data)
        elif self.pinged is not None:
            self.pinged = None
        return data

    def check_ping(self, data: bytes) -> None:
        """Comments keep a connection alive, and say nothing: the limits hold for them, too."""
        now = time.perf_counter()
        if not is_ping(data):
            self.pinged = None
        elif self.pinged is None:
            self.pinged = now
        else:
            kind, limits = (IDLE if self.begun else FIRST_BYTE), self.limits
            most = limits.idle_seconds if self.begun else limits.first_byte_seconds
            if now - self.pinged > most:
                raise late(kind, most, self.pulse, TimeoutError("nothing but comments"))

    def started(self) -> None:
        """The first byte of the body was seen: from now on the idle limit holds."""
        self.begun = True
        connection = self.response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = self.limits.idle_seconds

    async def finish(self) -> None:
        """Read the orderly end behind the last event, so that the connection can serve again."""
        if not self.content.at_eof():
            with contextlib.suppress(BackendFailure, asyncio.TimeoutError):
                await asyncio.wait_for(self.read(), END_SECONDS)
        self.response.close()

    def close(self) -> None:
        """Let go of the answer, finished or not."""
        self.response.close()  # a finished answer gave its connection back already


def is_ping(data: bytes) -> bool:
    """Whether bytes of a stream of events are comments and nothing else."""
    return data[:1] == b":" and b"data:" not in data


class HttpBackend:
    """Any server that speaks HTTP. `resumes`: it is an engine of joymigrate, which goes on where
    another one stopped."""

    def __init__(
        self,
        settings: UpstreamSettings,
        limits: GatewayLimits,
        context: ssl.SSLContext | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        import aiohttp

        from joymigrate.run.serve.gateway.connections import connector, in_pieces

        self.in_pieces = in_pieces
        self.limits, self.pulse = limits, pulse or Pulse()
        self.resumes = False  # until a health check says who answers
        self.change(settings, context)
        self.addresses: dict[str, Any] = {}
        self.session = aiohttp.ClientSession(
            connector=connector(limits, self.pulse),
            timeout=aiohttp.ClientTimeout(
                total=None,  # the relay keeps the time: a timer per request costs more
                sock_connect=limits.connect_seconds,
                sock_read=limits.first_byte_seconds,
            ),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BYTES,
            max_line_size=2**16,
            max_field_size=2**16,
        )

    def change(self, settings: UpstreamSettings, context: ssl.SSLContext | None) -> None:
        """Take up other settings; `context` says how TLS is spoken, None: as everybody does."""
        self.settings = settings
        self.tls: Any = True if context is None else context
        self.server_name = settings.secured.server_name if settings.secured is not None else None

    async def open(
        self,
        url: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        patience_seconds: float | None = None,
    ) -> HttpAnswer:
        """Send a request, wait for the answer's status; raises `BackendFailure`.
        `patience_seconds`: until its first byte, where that is not the usual limit."""
        import aiohttp

        patience = patience_seconds or self.limits.first_byte_seconds
        connect = self.limits.connect_seconds
        try:
            response = await self.session.request(
                method,
                self.address(url + path),
                data=body or None,
                headers=headers,
                allow_redirects=False,
                ssl=self.tls,
                server_hostname=self.server_name,
                timeout=aiohttp.ClientTimeout(None, sock_connect=connect, sock_read=patience),
            )
        except aiohttp.ConnectionTimeoutError as error:
            raise late(CONNECT, self.limits.connect_seconds, self.pulse, error) from None
        except TIMEOUTS as error:
            raise late(FIRST_BYTE, patience, self.pulse, error) from None
        except aiohttp.ClientConnectorError as error:
            raise BackendFailure(OWN if is_ours(error.os_error) else CONNECT, str(error)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise BackendFailure(RESET, str(error) or type(error).__name__) from None
        self.in_pieces(response.content)
        return HttpAnswer(response, self.limits, self.pulse)

    def address(self, url: str) -> Any:
        """The parsed address; most requests go to the same few."""
        from yarl import URL

        found = self.addresses.get(url)
        if found is None:
            if len(self.addresses) >= ADDRESSES:
                self.addresses.clear()
            found = self.addresses[url] = URL(url, encoded=True)
        return found

    async def check(self, url: str, paths: tuple[str, ...], timeout_seconds: float) -> str | None:
        """Why the backend is not healthy, or None when it is."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=timeout_seconds)
        trouble = "no health path"
        for path in paths:
            try:
                async with self.session.get(
                    url + path, timeout=limit, ssl=self.tls, server_hostname=self.server_name
                ) as response:
                    status = response.status
                    self.resumes = ENGINE in response.headers
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                if isinstance(error, TIMEOUTS) and self.pulse.excuses(timeout_seconds):
                    raise BackendFailure(OWN, "the gateway itself stood still") from None
                return f"{type(error).__name__}: {error}"
            if status < 400:
                return None
            trouble = f"{path} answers {status}"
            if status not in ABSENT:
                return trouble
        # Who answers, but knows none of the paths, is alive, unless the user named the path.
        return None if len(paths) > 1 else trouble

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()


def late(kind: str, limit_seconds: float, pulse: Pulse, error: Exception) -> BackendFailure:
    """What a limit that ran out says: nothing about the backend, where we stood still ourselves."""
    if pulse.excuses(limit_seconds):
        return BackendFailure(OWN, f"{kind} while the gateway itself stood still")
    return BackendFailure(kind, str(error))


OURS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENETDOWN, errno.ENETUNREACH,
        errno.ENOBUFS, errno.ENOMEM)  # fmt: skip


def is_ours(error: OSError) -> bool:
    """Whether this machine could not connect to anybody: no fault of the backend."""
    unsettled = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
    return unsettled or error.errno in OURS


ABSENT = (401, 403, 404, 405, 501)
