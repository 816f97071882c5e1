"""`serve MODEL --kind ranking`: options in, a ranking server on an address out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.cli._serve_front import FrontOptions


@dataclass(frozen=True, slots=True)
class RankingOptions:
    """What the command line asks for. `to` and `device` None: the best device that is there."""

    model: Path
    host: str
    port: int
    names: tuple[str, ...]
    front: FrontOptions
    to: str | None
    device: str | None
    unverified: bool
    ledger: Path | None
    log_format: str
    quiet: bool
    verbose: bool
    queue: int
    body_bytes: int
    drain_seconds: float
    threads: int | None
    compile: bool
    grpc_port: int | None
    lanes: int
    deadline_ms: float | None
    batch_ms: float
    versions: str | None


def recognise(model: Path) -> bool:
    """Whether this is a ranking model, by its files alone."""
    from joymigrate.run.serve.ranking import program

    return program.recognise(model)


def serve(start: RankingOptions) -> int:
    """Load the model, listen, serve until a signal."""
    import asyncio

    from joymigrate.cli._serve_model import device_of, refuse_unproven
    from joymigrate.extras import need
    from joymigrate.run.serve.web import logs
    from joymigrate.run.serve.web.limits import Limits

    if not start.model.exists():
        raise JoyError("there is no such model", where=str(start.model),
                       help="a .pt2 file, or a folder of train export")  # fmt: skip
    logs.open_log(start.log_format, quiet=start.quiet, verbose=start.verbose)
    device, chip = device_of(start.to, start.device)
    if chip is not None and not start.unverified:
        refuse_unproven(start, chip)
    front = start.front.front()
    if start.grpc_port is not None:
        if start.front.certificate is not None:
            raise JoyError("gRPC is served without TLS here",
                           help="leave --grpc-port out, or put a proxy in front")  # fmt: skip
        need("serve", "grpc", "google.protobuf", what="gRPC")
    from joymigrate.run.serve.ranking import start as starting

    service = starting.open_service(
        start.model,
        starting.Settings(
            device=device,
            lanes=start.lanes,
            threads=start.threads,
            deadline_ms=start.deadline_ms,
            batch_seconds=start.batch_ms / 1000,
            compile=start.compile,
            versions=start.versions,
        ),
        names=start.names,
        keys=start.front.read_keys(),
        limits=Limits(
            body_bytes=start.body_bytes, queue=start.queue, drain_seconds=start.drain_seconds
        ),
    )
    try:
        asyncio.run(starting.serve(service, start.host, start.port, start.grpc_port, front))
    finally:
        service.engine.close()
    return Exit.OK
