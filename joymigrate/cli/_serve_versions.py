"""`serve rollout versions`: published versions of a ranking model through the gateway's ramp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from joymigrate.errors import Exit, JoyError


def run(config: Path, key: str, poll_seconds: float, say: Callable[[str], None]) -> int:
    """Drive the ramp until a signal."""
    import asyncio
    import contextlib
    import signal

    from joymigrate.run.serve.gateway import settings

    loaded = settings.load(config)
    from joymigrate.extras import need

    need("serve", "aiohttp", what="the ramp of versions")
    from joymigrate.run.serve.gateway import version_ramp

    urls = {}
    for name in ("primary", "standby"):
        one = loaded.of_role(name)
        if len(one.urls) != 1:
            raise JoyError(f"the {name} has {len(one.urls)} servers: versions are ramped over one",
                           where=str(config))  # fmt: skip
        urls[name] = one.urls[0].rstrip("/")
    places = version_ramp.RampServers(f"http://{loaded.host}:{loaded.port}", **urls, key=key)
    memory = config.with_suffix(".versions.json")

    async def work() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(one, stop.set)
        await version_ramp.follow(places, memory, poll_seconds, say, stop)

    asyncio.run(work())
    return Exit.OK
