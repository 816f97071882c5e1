"""Connections to backends: made a few at a time, and read on only when reading was paused.

aiohttp's stream reader resumes its connection after every piece that it hands out, and each time
the parser is run on nothing. For a stream of 33 chunks that is a tenth of the processor time. It
also hands out each chunk by itself, and joins them then: `UpstreamBody` joins what came at once.

When 2,000 clients come in one moment and the processor is busy, 2,000 connections are begun in one
round of the event loop, which then takes longer than a connection may: all of them seem late,
though every backend took its own at once. So only `AT_ONCE` are begun together, and one that was
late because this process stood still is begun again. Nothing was sent on it: that is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from joymigrate.run.serve.gateway.pulse import TIMEOUTS, Pulse
from joymigrate.run.serve.gateway.settings import GatewayLimits

AT_ONCE = 128  # connections of one backend that are being made
FEW = 4  # pieces from which on they are joined at once
KNOWN = {"_buffer", "_buffer_offset", "_http_chunk_splits", "_cursor", "_size", "_timer"} <= set(
    StreamReader.__slots__
)


class UpstreamConnection(ResponseHandler):
    """One connection. A parser has unread data only while its connection is paused."""

    __slots__ = ()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:
            super().resume_reading(resume_parser)


class UpstreamBody(StreamReader):
    """The body of an answer, whose chunks nobody tells apart."""

    __slots__ = ()

    def _read_nowait(self, n: int) -> bytes:
        if n != -1 or self._buffer_offset or len(self._buffer) < FEW:
            return super()._read_nowait(n)
        self._timer.assert_timeout()
        data = b"".join(self._buffer)
        self._buffer.clear()
        if self._http_chunk_splits:
            self._http_chunk_splits.clear()
        self._cursor += len(data)
        self._size = 0
        self._protocol.resume_reading()  # may bring more, for the next time
        return data


def in_pieces(content: StreamReader) -> None:
    """Let a body be read by `UpstreamBody`, where aiohttp's reader is the one it was made for."""
    if type(content) is StreamReader and KNOWN:
        content.__class__ = UpstreamBody


class Connector(aiohttp.TCPConnector):
    """Makes connections. `limits` says how long one may take, and how long all tries together."""

    def __init__(self, limits: GatewayLimits, pulse: Pulse) -> None:
        super().__init__(limit=0, keepalive_timeout=limits.keepalive_seconds, use_dns_cache=True)
        self.limits, self.pulse = limits, pulse
        self.places = asyncio.Semaphore(AT_ONCE)

    async def _create_connection(self, *given: Any, **named: Any) -> Any:
        clock = asyncio.get_running_loop().time
        until = clock() + self.limits.first_byte_seconds
        while True:
            async with self.place():
                try:
                    return await super()._create_connection(*given, **named)
                except TIMEOUTS:
                    if clock() > until or not self.pulse.excuses(self.limits.connect_seconds):
                        raise

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for one of the places, but no longer than a connection may take: where a backend
        lets everybody wait, those behind must not learn of it later."""
        taken = not self.places.locked()
        if taken:
            await self.places.acquire()
        else:
            try:
                await asyncio.wait_for(self.places.acquire(), self.limits.connect_seconds)
                taken = True
            except TIMEOUTS:
                pass
        try:
            yield
        finally:
            if taken:
                self.places.release()


def connector(limits: GatewayLimits, pulse: Pulse) -> aiohttp.TCPConnector:
    """A connector without a limit (the upstream counts); an aiohttp that differs stays as it is."""
    made = Connector(limits, pulse)
    known = hasattr(made, "_factory") and "resume_parser" in (
        ResponseHandler.resume_reading.__code__.co_varnames
    )
    if known:
        made._factory = partial(UpstreamConnection, loop=asyncio.get_running_loop())  # type: ignore[assignment]
    return made
