"""The connections to backends: quiet while nothing is paused, whole when something is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from joymigrate.run.serve.gateway import connections
from joymigrate.run.serve.gateway.connections import connector
from joymigrate.run.serve.gateway.pulse import BEAT_SECONDS, Pulse
from joymigrate.run.serve.gateway.settings import GatewayLimits

LARGE = bytes(range(256)) * 2**14  # 4 MiB: far more than the reader's buffer


async def large(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for start in range(0, len(LARGE), 2**12):
        await response.write(LARGE[start : start + 2**12])
    return response


async def small(request: web.Request) -> web.Response:
    return web.Response(body=b"small")


async def fetch(path: str, pause: int) -> bytes:
    app = web.Application()
    app.router.add_get("/large", large)
    app.router.add_get("/small", small)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    got = b""
    async with aiohttp.ClientSession(
        connector=connector(GatewayLimits(), Pulse()), read_bufsize=2**14
    ) as session:
        for _ in range(2):  # the second time on the same connection
            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                connections.in_pieces(response.content)
                for _ in range(pause):
                    await asyncio.sleep(0)  # lets the buffer fill until reading is paused
                got = await response.content.readany()
                while piece := await response.content.readany():
                    got += piece
    await runner.cleanup()
    return got


@pytest.mark.parametrize("path", ["/large", "/small"])
def test_a_paused_connection_goes_on_and_others_are_left_alone(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[bool] = []
    original = ResponseHandler.resume_reading

    def watched(self: Any, resume_parser: bool = True) -> None:
        resumed.append(self._reading_paused)
        original(self, resume_parser)

    monkeypatch.setattr(ResponseHandler, "resume_reading", watched)
    got = asyncio.run(asyncio.wait_for(fetch(path, 200), 30))
    assert got == (LARGE if path == "/large" else b"small")
    assert all(resumed), "resumed although nothing was paused"
    assert bool(resumed) == (path == "/large")


async def asked(clients: int, limits: GatewayLimits, stall_seconds: float) -> list[int]:
    """Statuses of requests that are begun together, before the process stands still for a while."""
    app = web.Application()
    app.router.add_get("/small", small)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pulse = Pulse()
    beats = asyncio.create_task(pulse.run())
    await asyncio.sleep(BEAT_SECONDS)
    timeout = aiohttp.ClientTimeout(sock_connect=limits.connect_seconds, ceil_threshold=60)
    try:
        async with aiohttp.ClientSession(
            connector=connector(limits, pulse), timeout=timeout
        ) as session:

            async def one() -> int:
                async with session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/small") as got:
                    return got.status

            asks = [asyncio.create_task(one()) for _ in range(clients)]
            asyncio.get_running_loop().call_soon(time.sleep, stall_seconds)
            return list(await asyncio.gather(*asks))
    finally:
        beats.cancel()
        await runner.cleanup()


def test_a_connection_that_is_late_by_our_own_stall_is_begun_again() -> None:
    limits = GatewayLimits(connect_seconds=0.1, first_byte_seconds=5.0)
    assert asyncio.run(asked(3, limits, 0.3)) == [200] * 3
    with pytest.raises(aiohttp.ConnectionTimeoutError):  # without patience: what happened before
        asyncio.run(asked(3, GatewayLimits(connect_seconds=0.1, first_byte_seconds=0.0), 0.3))


def test_few_connections_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    most = making = 0
    original = aiohttp.TCPConnector._create_connection

    async def counted(*given: Any, **named: Any) -> Any:
        nonlocal most, making
        making += 1
        most = max(most, making)
        try:
            return await original(*given, **named)
        finally:
            making -= 1

    monkeypatch.setattr(connections, "AT_ONCE", 4)
    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", counted)
    assert asyncio.run(asked(40, GatewayLimits(), 0.0)) == [200] * 40
    assert most == 4


def test_a_backend_that_takes_no_connection_keeps_nobody_waiting_for_a_place() -> None:
    async def scenario() -> float:
        made: Any = connector(GatewayLimits(connect_seconds=0.1), Pulse())
        made.places = asyncio.Semaphore(0)
        begun = time.perf_counter()
        async with made.place():
            waited = time.perf_counter() - begun
        assert made.places.locked(), "a place that was not taken is not given back"
        await made.close()
        return waited

    assert asyncio.run(scenario()) >= 0.1


def test_what_came_at_once_is_handed_out_at_once() -> None:
    async def whole() -> None:
        protocol = ResponseHandler(asyncio.get_running_loop())
        reader = StreamReader(protocol, 2**10, loop=asyncio.get_running_loop())
        connections.in_pieces(reader)
        assert type(reader) is connections.UpstreamBody
        reader.begin_http_chunk_receiving()
        for piece in (b"one ", b"two ", b"three ", b"four ", b"five"):
            reader.feed_data(piece)
            reader.end_http_chunk_receiving()
        assert await reader.read(2) == b"on"  # a part, by aiohttp's own way
        assert await reader.readany() == b"e two three four five"
        for piece in (b"six ", b"seven ", b"eight ", b"nine"):
            reader.feed_data(piece)
            reader.end_http_chunk_receiving()
        assert await reader.readany() == b"six seven eight nine"
        assert (reader._size, reader._cursor) == (0, reader.total_bytes)
        reader.feed_eof()
        assert await reader.readany() == b""

    asyncio.run(whole())
