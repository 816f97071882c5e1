"""`serve MODEL --kind ranking`: options in, a ranking server on an address out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.cli._output import one_of
from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.cli._serve_options import RankingOptions, ServerOptions


def recognise(model: Path) -> bool:
    """Whether this is a ranking model, by its files alone."""
    from joymigrate.run.serve.ranking import program

    return program.recognise(model)


def serve(model: Path, server: ServerOptions, start: RankingOptions) -> int:
    """Load the model, listen, serve until a signal."""
    import asyncio

    from joymigrate.cli._serve_model import device_of, refuse_unproven
    from joymigrate.extras import need
    from joymigrate.run.serve.web import logs

    if not model.exists():
        raise JoyError("there is no such model", where=str(model),
                       help="a .pt2 file, or a folder of train export")  # fmt: skip
    logs.open_log(server.log_format, quiet=server.quiet, verbose=server.verbose)
    check_parts(start)
    if start.part == "sparse":
        return serve_shard(model, server, start)
    device, chip = device_of(server.to, server.device)
    if chip is not None and not server.unverified:
        refuse_unproven(model, server.ledger, chip)
    front = server.front()
    if start.grpc_port is not None:
        need("serve", "grpc", "tritonclient", what="gRPC")
    from joymigrate.run.serve.kserve.listening import listen
    from joymigrate.run.serve.ranking import start as starting

    service = starting.open_service(
        model,
        starting.RankingSettings(
            device=device,
            lanes=start.lanes,
            lane_kind=start.lane_kind,
            threads=server.threads,
            deadline_ms=start.deadline_ms,
            batch_seconds=start.batch_ms / 1000,
            compile=server.compile is not False,
            versions=start.versions,
            shards=tuple(tuple(one.split("|")) for one in start.sparse),
            shard_seconds=start.shard_ms / 1000,
            lost=start.lost_shard,
            row_cache=start.row_cache if start.sparse else 0,
            user_cache=start.user_cache * 2**20,
            record=start.record,
            hold=start.hold,
        ),
        names=server.names,
        keys=server.read_keys(),
        limits=server.limits(),
    )
    try:
        asyncio.run(listen(service, server.host, server.port, front, start.grpc_port))
    finally:
        service.engine.close()
    return Exit.OK


def check_parts(start: RankingOptions) -> None:
    """Refuse unknown words, and options of parts that do not go together."""
    one_of(start.part, ("whole", "dense", "sparse"), "--part")
    one_of(start.lane_kind, ("threads", "processes"), "--lane-kind")
    one_of(start.lost_shard, ("error", "default"), "--lost-shard")
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


def serve_shard(model: Path, server: ServerOptions, start: RankingOptions) -> int:
    """Serve the rows of one shard until a signal."""
    import asyncio

    from joymigrate.run.serve.ranking import start as starting

    index, count = place_of(start.shard)
    service = starting.open_shard(
        model, index, count, rows=start.rows, row_cache=start.row_cache,
        versions=start.versions, keys=server.read_keys(), limits=server.limits(),
    )  # fmt: skip
    asyncio.run(starting.serve_shard(service, server.host, server.port, server.front()))
    return Exit.OK
