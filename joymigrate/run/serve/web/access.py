"""The line that a relayed request leaves in the log."""

from __future__ import annotations

import logging
import time

from aiohttp import web

from joymigrate.run.serve.web.site import Visit

log = logging.getLogger("joymigrate.serve")


def write(visit: Visit, path: str, started: float, reply: web.StreamResponse | None) -> None:
    """Write it; `started` is on the process's clock. A client that went away has no `reply`."""
    status = None if reply is None else reply.status
    fields = {
        "request": visit.id,
        "method": visit.method,
        "path": path,
        "status": status,
        "seconds": round(time.perf_counter() - started, 6),
        "key": visit.key_name or None,
        "upstream": None if reply is None else reply.headers.get("X-Joymigrate-Upstream"),
        "client": visit.remote,
    }
    log.info("%s %s %s", visit.method, path, status or "gone", extra={"fields": fields})
