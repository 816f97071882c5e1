"""The monitor's own small server, for `joymigrate monitor`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from aiohttp import web

from joymigrate.run.serve.monitor.service import Monitor
from joymigrate.run.serve.web import address
from joymigrate.run.serve.web.signals import until_ended


async def dashboard(monitor: Monitor, request: web.BaseRequest) -> web.Response:
    """The page. It may load nothing from anywhere and be framed by nobody."""
    return web.Response(
        text=monitor.page(),
        content_type="text/html",
        headers={
            "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
            "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
            "Cache-Control": "no-store",
        },
    )


async def data(monitor: Monitor, request: web.BaseRequest) -> web.Response:
    """The page's numbers."""
    try:
        window = float(request.query.get("window", "900"))
    except ValueError:
        window = 900.0
    found = await monitor.data(window)
    return web.Response(text=json.dumps(found), content_type="application/json")


async def serve(
    monitor: Monitor, host: str, port: int, talk: Callable[[str], None], once: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path in ("/", "/dashboard", "/cluster"):
            return await dashboard(monitor, request)
        if request.path == "/monitor.json":
            return await data(monitor, request)
        return web.Response(status=404, text="nothing is here\n")

    taken = address.take(host, port)
    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    for bound in taken:
        await web.SockSite(runner, bound).start()
    talk(f"dashboard on http://{host}:{runner.addresses[0][1]}/dashboard")
    looking = asyncio.create_task(monitor.run())
    try:
        async with until_ended() as (ended, _):
            await ended.wait()
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await runner.cleanup()
        await monitor.close()
