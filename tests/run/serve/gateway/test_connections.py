"""The connections to backends: quiet while nothing is paused, whole when something is."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler

from joymigrate.run.serve.gateway.connections import connector

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
    async with aiohttp.ClientSession(connector=connector(2.0), read_bufsize=2**14) as session:
        for _ in range(2):  # the second time on the same connection
            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
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
