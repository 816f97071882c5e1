"""From a model on disk to a ranking service on its addresses."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.run.serve.ranking import trial
from joymigrate.run.serve.ranking.batcher import Limits
from joymigrate.run.serve.ranking.lanes import Engine
from joymigrate.run.serve.ranking.meters import Meters
from joymigrate.run.serve.ranking.packages import Packages
from joymigrate.run.serve.ranking.program import load
from joymigrate.run.serve.ranking.service import Service
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import Limits as ClientLimits
from joymigrate.run.serve.web.server import Server, run
from joymigrate.run.serve.web.site import Front

log = logging.getLogger("joymigrate.serve")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is served. `lanes` 0: one."""

    device: str = "cpu"
    lanes: int = 0
    threads: int | None = None
    deadline_ms: float | None = None
    batch_seconds: float = 0.025
    compile: bool = False
    versions: str | None = None  # where versions are published


def open_service(
    path: Path,
    settings: Settings,
    *,
    names: Sequence[str] = (),
    keys: Sequence[str | Key] = (),
    limits: ClientLimits | None = None,
) -> Service:
    """Load a model, try it, measure it, start its lanes. Raises `JoyError`."""
    import torch

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    began = time.perf_counter()
    limits = limits or ClientLimits()
    program = load(path, settings.device)
    program.signature, alone = trial.try_merging(program)
    if alone:
        log.warning("requests are not merged: %s", alone)
    if program.signature.unbounded:
        log.warning(
            "nobody said how many ids there are for %s: wrong ones are refused by the model only",
            ", ".join(program.signature.unbounded),
        )
    engine = Engine(
        program, lanes=settings.lanes or 1, limits=Limits(seconds=settings.batch_seconds),
        queue=limits.queue, alone=alone,
    )  # fmt: skip
    trial.fit(engine)
    engine.start()
    meters = Meters(engine)
    following = None
    if settings.versions is not None:
        following = Versions(engine, settings.versions)
        meters.add_versions(following)
        following.start()
    packages = None
    if settings.compile:
        packages = Packages(engine)
        meters.add_packages(packages)
        packages.start()
    called = tuple(names) or (path.stem if path.is_file() else path.name,)
    log.info("opened %s in %.1f s", path, time.perf_counter() - began)
    return Service(
        engine,
        called,
        meters,
        limits,
        Keys.of(keys),
        settings.deadline_ms,
        packages=packages,
        versions=following,
        admin_key=os.environ.get("JOYMIGRATE_ADMIN_KEY", ""),
    )


async def serve(
    service: Service,
    host: str,
    port: int,
    grpc_port: int | None = None,
    front: Front | None = None,
) -> None:
    """Listen until a signal."""
    server = Server(service, host, port, front)
    extra: dict[str, Any] = {}
    rpc_server: Any = None
    if grpc_port is not None:
        from joymigrate.run.serve.ranking import rpc

        rpc_server, bound = await rpc.start(service, host, grpc_port)
        extra["grpc"] = f"{host}:{bound}"

    def listening() -> None:
        engine = service.engine
        log.info(
            "listening on %s",
            server.url,
            extra={
                "fields": {
                    "url": server.url,
                    **extra,
                    "model": service.name,
                    "kind": "ranking",
                    "device": engine.program.device,
                    "lanes": len(engine.lanes),
                    "merges": not engine.alone,
                }
            },
        )

    try:
        await run(server, listening)
    finally:
        if rpc_server is not None:
            await rpc_server.stop(service.limits.drain_seconds)
