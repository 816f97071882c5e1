"""From a model on disk to a ranking service on its addresses."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.run.serve.ranking import lane_count, trial
from joymigrate.run.serve.ranking.batcher import BatchLimits
from joymigrate.run.serve.ranking.lanes import THREADS, RankingEngine
from joymigrate.run.serve.ranking.meters import RankingMeters
from joymigrate.run.serve.ranking.packages import Packages
from joymigrate.run.serve.ranking.program import keep_users, load, take_tables_out
from joymigrate.run.serve.ranking.record import RequestRecorder
from joymigrate.run.serve.ranking.remote import Shards
from joymigrate.run.serve.ranking.rows import RedisRows, open_tables
from joymigrate.run.serve.ranking.service import RankingService
from joymigrate.run.serve.ranking.shard import Shard, ShardService
from joymigrate.run.serve.ranking.shard_versions import ShardVersions
from joymigrate.run.serve.ranking.split import ERROR
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits as ClientLimits
from joymigrate.run.serve.web.server import Server, run
from joymigrate.run.serve.web.site import Front

log = logging.getLogger("joymigrate.serve")
START_SECONDS = 60.0  # for sparse shards that start at the same time
REDIS_SECONDS = 1.0  # how old a row of Redis may be


@dataclass(frozen=True, slots=True)
class RankingSettings:
    """How a model is served. `lanes` 0: as many as answer most requests here."""

    device: str = "cpu"
    lanes: int = 0
    lane_kind: str = THREADS
    threads: int | None = None
    deadline_ms: float | None = None
    batch_seconds: float = 0.025
    compile: bool = False
    versions: str | None = None  # where versions are published
    shards: tuple[tuple[str, ...], ...] = ()  # addresses of the sparse part, by shard
    shard_seconds: float = 0.05
    lost: str = ERROR  # what a lost shard gives
    row_cache: int = 0  # rows of each table that the dense part keeps
    user_cache: int = 0  # bytes of user sides that are kept
    record: Path | None = None  # where requests are written down
    hold: bool = False  # versions are taken when an operator says so


def open_service(
    path: Path,
    settings: RankingSettings,
    *,
    names: Sequence[str] = (),
    keys: Sequence[str | Key] = (),
    limits: ClientLimits | None = None,
) -> RankingService:
    """Load a model, try it, measure it, start its lanes. Raises `JoyError`."""
    import torch

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    began = time.perf_counter()
    limits = limits or ClientLimits()
    program = load(path, settings.device)
    if settings.shards:
        shards = Shards(settings.shards, seconds=settings.shard_seconds, cache=settings.row_cache)
        shards.start(START_SECONDS)
        take_tables_out(program, shards, settings.lost)
    if settings.user_cache:
        keep_users(program, settings.user_cache)
    freedom = trial.find_freedom(program)
    program.signature, alone = freedom.signature, freedom.alone
    if alone:
        log.warning("requests are not merged: %s", alone)
    if program.signature.unbounded:
        log.warning(
            "nobody said how many ids there are for %s: wrong ones are refused by the model only",
            ", ".join(program.signature.unbounded),
        )
    lanes = settings.lanes or lane_count.choose(program, alone)
    if settings.threads is None and lanes > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // lanes))
    engine = RankingEngine(
        program, lanes=lanes, kind=settings.lane_kind,
        limits=freedom.limit(BatchLimits(seconds=settings.batch_seconds)), queue=limits.queue,
        alone=alone, whole=freedom.whole,
    )  # fmt: skip
    engine.start()
    trial.fit(engine)
    meters = RankingMeters(engine)
    if program.split is not None:
        meters.add_shards(program.split.shards)
    if program.users is not None:
        meters.add_users(program.users)
    following = None
    if settings.versions is not None:
        following = Versions(engine, settings.versions, hold=settings.hold)
        meters.add_versions(following)
        following.start()
    packages = None
    if settings.compile:
        packages = Packages(engine)
        meters.add_packages(packages)
        packages.start()
    called = tuple(names) or (path.stem if path.is_file() else path.name,)
    log.info("opened %s in %.1f s", path, time.perf_counter() - began)
    return RankingService(
        engine,
        called,
        meters,
        limits,
        Keys.of(keys),
        settings.deadline_ms,
        packages=packages,
        versions=following,
        recorder=RequestRecorder(settings.record) if settings.record is not None else None,
        admin_key=os.environ.get("JOYMIGRATE_ADMIN_KEY", ""),
    )


def open_shard(
    path: Path,
    index: int,
    count: int,
    *,
    rows: str | None = None,
    row_cache: int = 0,
    versions: str | None = None,
    keys: Sequence[str | Key] = (),
    limits: ClientLimits | None = None,
) -> ShardService:
    """The sparse part of a model: shard `index` of `count`. Raises `JoyError`."""
    tables = open_tables(path)
    redis = RedisRows(rows, tables, row_cache, REDIS_SECONDS) if rows is not None else None
    shard = Shard(tables, index, count, redis)
    following = None
    if versions is not None:
        following = ShardVersions(shard, versions)
        following.start()
    log.info("opened %d tables of %s", len(tables), path)
    return ShardService(shard, limits or ClientLimits(), Keys.of(keys), following)


async def serve_shard(
    service: ShardService, host: str, port: int, front: Front | None = None
) -> None:
    """Listen until a signal."""
    server = Server(service, host, port, front)

    def listening() -> None:
        shard = service.shard
        fields = {"url": server.url, "kind": "ranking", "part": "sparse", "shard": shard.index,
                  "of": shard.count, "tables": len(shard.tables)}  # fmt: skip
        log.info("listening on %s", server.url, extra={"fields": fields})

    await run(server, listening)
