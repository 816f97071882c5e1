"""`serve MODEL --kind ranking`: options in, a ranking server on an address out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.cli._serve_front import FrontOptions
    from joymigrate.run.serve.web.limits import Limits


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
    lane_kind: str
    deadline_ms: float | None
    batch_ms: float
    versions: str | None
    part: str
    shard: str
    sparse: tuple[str, ...]
    shard_ms: float
    lost_shard: str
    rows: str | None
    row_cache: int
    user_cache: int
    record: Path | None
    graphs: bool
    hold: bool


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
    check_parts(start)
    limits = Limits(
        body_bytes=start.body_bytes, queue=start.queue, drain_seconds=start.drain_seconds
    )
    if start.part == "sparse":
        return serve_shard(start, limits)
    device, chip = device_of(start.to, start.device)
    if chip is not None and not start.unverified:
        refuse_unproven(start, chip)
    front = start.front.front()
    if start.grpc_port is not None:
        need("serve", "grpc", "google.protobuf", what="gRPC")
    from joymigrate.run.serve.ranking import start as starting

    service = starting.open_service(
        start.model,
        starting.Settings(
            device=device,
            lanes=start.lanes,
            lane_kind=start.lane_kind,
            threads=start.threads,
            deadline_ms=start.deadline_ms,
            batch_seconds=start.batch_ms / 1000,
            compile=start.compile,
            versions=start.versions,
            shards=tuple(tuple(one.split("|")) for one in start.sparse),
            shard_seconds=start.shard_ms / 1000,
            lost=start.lost_shard,
            row_cache=start.row_cache if start.sparse else 0,
            user_cache=start.user_cache * 2**20,
            record=start.record,
            graphs=start.graphs,
            hold=start.hold,
        ),
        names=start.names,
        keys=start.front.read_keys(),
        limits=limits,
    )
    try:
        asyncio.run(starting.serve(service, start.host, start.port, start.grpc_port, front))
    finally:
        service.engine.close()
    return Exit.OK


def check_parts(start: RankingOptions) -> None:
    """Options of parts that do not go together."""
    if start.part == "sparse" and start.sparse:
        raise JoyError("--sparse names the shards of a dense part; this is --part sparse")
    if start.part == "dense" and not start.sparse:
        raise JoyError("--part dense needs its shards", help="--sparse URL for each, in order")
    if start.part == "whole" and start.sparse:
        raise JoyError("--sparse is for --part dense", help="add --part dense")
    if start.part != "sparse" and start.rows is not None:
        raise JoyError("--rows is for --part sparse")
    if start.rows is not None and start.versions is not None:
        raise JoyError("rows of Redis change by themselves: they have no versions",
                       help="leave --rows or --versions out")  # fmt: skip
    if start.sparse and start.user_cache:
        raise JoyError("--user-cache needs the whole model in one process",
                       help="leave --sparse or --user-cache out")  # fmt: skip


def place_of(text: str) -> tuple[int, int]:
    """`i/N` → (i, N). Raises `JoyError`."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise JoyError(f"--shard is i/N with i from 0 to N-1, got '{text}'")
    return int(index), int(count)


def serve_shard(start: RankingOptions, limits: Limits) -> int:
    """Serve the rows of one shard until a signal."""
    import asyncio

    from joymigrate.run.serve.ranking import start as starting

    index, count = place_of(start.shard)
    service = starting.open_shard(
        start.model, index, count, rows=start.rows, row_cache=start.row_cache,
        versions=start.versions, keys=start.front.read_keys(), limits=limits,
    )  # fmt: skip
    asyncio.run(starting.serve_shard(service, start.host, start.port, start.front.front()))
    return Exit.OK
