"""From a model folder to a generative recommender on its address."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joymigrate.run.beam import BeamSearch
from joymigrate.run.serve.generative.loop import BeamLoop
from joymigrate.run.serve.generative.recommender import CodeWriter, load
from joymigrate.run.serve.generative.service import GenerativeService
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.server import Server, run
from joymigrate.run.serve.web.site import Front

log = logging.getLogger("joymigrate.serve")


def open_service(
    folder: Path,
    device: str = "cpu",
    *,
    beams: int = 4096,
    names: Sequence[str] = (),
    keys: Sequence[str | Key] = (),
    limits: HttpLimits | None = None,
) -> GenerativeService:
    """Load a model and start its search of at most `beams` beams. Raises `JoyError`."""
    limits = limits or HttpLimits()
    served = load(folder, device)
    loop = BeamLoop(BeamSearch(CodeWriter(served), served.trie, capacity=beams), limits.queue)
    called = tuple(names) or (folder.resolve().name,)
    return GenerativeService(served, loop, called, limits, Keys.of(keys))


async def serve(
    service: GenerativeService,
    host: str,
    port: int,
    front: Front | None = None,
    grpc_port: int | None = None,
) -> None:
    """Listen until a signal; over gRPC, too, with `grpc_port`."""
    server = Server(service, host, port, front)
    rpc_server: Any = None
    extra: dict[str, Any] = {}
    if grpc_port is not None:
        from joymigrate.run.serve.generative.rpc import CALLS
        from joymigrate.run.serve.ranking import rpc

        rpc_server, bound = await rpc.start(
            service, host, grpc_port, front.tls if front is not None else None, CALLS
        )
        extra["grpc"] = f"{host}:{bound}"

    def listening() -> None:
        fields = {
            "url": server.url,
            **extra,
            "model": service.names[0],
            "kind": "generative",
            "items": len(service.served.trie.items),
            "rounds": service.served.trie.rounds,
            "beams": service.loop.search.capacity,
        }
        log.info("listening on %s", server.url, extra={"fields": fields})

    try:
        await run(server, listening)
    finally:
        if rpc_server is not None:
            await rpc_server.stop(service.limits.drain_seconds)
