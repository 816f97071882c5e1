"""Listens with a service over HTTP, and over gRPC where a port is named, until a signal."""

from __future__ import annotations

import logging
from typing import Any

from joymigrate.run.serve.kserve.protocol import KserveService
from joymigrate.run.serve.web.server import Server, run
from joymigrate.run.serve.web.site import Front

log = logging.getLogger("joymigrate.serve")


async def listen(
    service: KserveService,
    host: str,
    port: int,
    front: Front | None = None,
    grpc_port: int | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM."""
    server = Server(service, host, port, front)
    rpc_server: Any = None
    extra: dict[str, Any] = {}
    if grpc_port is not None:
        from joymigrate.run.serve.kserve import rpc

        secured = front.tls if front is not None else None
        rpc_server, bound = await rpc.start(service, host, grpc_port, secured)
        extra["grpc"] = f"{host}:{bound}"

    def listening() -> None:
        fields = {"url": server.url, **extra, "model": service.names[0], **service.describe_start()}
        log.info("listening on %s", server.url, extra={"fields": fields})

    try:
        await run(server, listening)
    finally:
        if rpc_server is not None:
            await rpc_server.stop(service.limits.drain_seconds)
