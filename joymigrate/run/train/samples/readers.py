"""Reads pieces of data files in order: in threads, in processes that may be killed, or by Ray Data.

What is read depends on the pieces alone. However many readers there are, and whoever of them
dies, the batches come in the order of the pieces, each once.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.run.train.samples.batch import SampleBatch
from joymigrate.run.train.samples.encode import Encoder, check_columns
from joymigrate.run.train.samples.histories import open_histories
from joymigrate.run.train.samples.parquet import open_file
from joymigrate.run.train.samples.position import EpochOrder, RowGroupPiece
from joymigrate.run.train.samples.schema import FeatureSchema

DEATHS = 20  # of readers, one after another without a piece read between, that end a run
ENGINES = ("threads", "processes", "ray")


@dataclass(frozen=True)
class SampleRows:
    """Files as numbered groups of rows with a schema of features; cheap to send to a reader."""

    files: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]  # a group's file, and where it lies in it
    sizes: tuple[int, ...]
    schema: FeatureSchema
    seed: int = 0
    shuffle: bool = True

    @functools.cached_property
    def order(self) -> EpochOrder:
        """The order of the rows."""
        return EpochOrder(self.sizes, self.seed, shuffle=self.shuffle)

    def read(self, piece: RowGroupPiece) -> SampleBatch:
        """The rows of a piece, encoded."""
        raise NotImplementedError

    def empty(self) -> SampleBatch:
        """No rows, with all columns."""
        raise NotImplementedError


class ParquetRows(SampleRows):
    """Row groups of Parquet files."""

    def read(self, piece: RowGroupPiece) -> SampleBatch:
        """The rows of a piece, encoded."""
        import pyarrow as pa

        number, group = self.groups[piece.group]
        path = self.files[number]
        columns = self.schema.columns()
        table = open_file(path).read_row_group(group, columns=columns, use_threads=False)
        rows = self.order.rows_of(piece)
        if self.shuffle or piece.last - piece.first < len(table):
            table = table.combine_chunks().take(pa.array(rows))
        return encoder_of(self.schema).encode(table, f"{path} row group {group}", rows)

    def empty(self) -> SampleBatch:
        """No rows, with all columns."""
        table = open_file(self.files[0]).schema_arrow.empty_table()
        return encoder_of(self.schema).encode(table, self.files[0])


def parquet_rows(
    files: Sequence[Path], schema: FeatureSchema, seed: int = 0, *, shuffle: bool = True
) -> ParquetRows:
    """All row groups of files.

    Raises `JoyError` for a file that is not Parquet or lacks a column.
    """
    groups, sizes = [], []
    for number, path in enumerate(files):
        known = open_file(str(path)).metadata
        check_columns(schema, open_file(str(path)).schema_arrow.names, str(path))
        for group in range(known.num_row_groups):
            groups.append((number, group))
            sizes.append(known.row_group(group).num_rows)
    kept = [at for at, size in enumerate(sizes) if size]
    return ParquetRows(
        tuple(map(str, files)),
        tuple(groups[at] for at in kept),
        tuple(sizes[at] for at in kept),
        schema,
        seed,
        shuffle,
    )


ENCODERS: dict[int, tuple[FeatureSchema, Encoder]] = {}
ENCODERS_LOCK = threading.Lock()


def encoder_of(schema: FeatureSchema) -> Encoder:
    """The encoder of a schema in this process, with its history store opened once."""
    with ENCODERS_LOCK:
        known = ENCODERS.get(id(schema))
        if known is None or known[0] is not schema:
            store = None if schema.histories is None else open_histories(schema.histories.store)
            known = ENCODERS[id(schema)] = (schema, Encoder(schema, store))
    return known[1]


class Readers(Protocol):
    """Gives batches in the order of pieces."""

    def stream(
        self, rows: SampleRows, pieces: Sequence[RowGroupPiece]
    ) -> Iterator[SampleBatch]: ...
    def close(self) -> None: ...


def start_readers(engine: str, count: int, ahead: int = 2) -> Readers:
    """Readers of a kind; `ahead` pieces per reader are read before they are asked for."""
    if engine == "threads":
        return ThreadReaders(count, ahead)
    if engine == "processes":
        return ProcessReaders(count, ahead)
    return RayReaders(count)


class ThreadReaders:
    """Threads of this process: Arrow and numpy let go of the interpreter for most of the work."""

    def __init__(self, count: int, ahead: int = 2) -> None:
        self.count, self.ahead = count, ahead
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="reader")

    def stream(self, rows: SampleRows, pieces: Sequence[RowGroupPiece]) -> Iterator[SampleBatch]:
        """Batches in order, some pieces ahead."""
        waiting: collections.deque[Future[SampleBatch]] = collections.deque()
        try:
            for piece in pieces:
                waiting.append(self.pool.submit(rows.read, piece))
                if len(waiting) > self.count * self.ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Stop reading."""
        self.pool.shutdown(wait=False, cancel_futures=True)


HELD: list[SampleRows] = []


def hold(rows: SampleRows | None) -> None:
    """Called once in every reader process."""
    if rows is not None:
        HELD.append(rows)


def read_held(piece: RowGroupPiece) -> SampleBatch:
    """Called in a reader process."""
    return HELD[-1].read(piece)


class ProcessReaders:
    """Processes: one that is killed costs what it was reading, which is read again."""

    def __init__(self, count: int, ahead: int = 2) -> None:
        self.count, self.ahead = count, ahead
        self.pool: ProcessPoolExecutor | None = None
        self.rows: SampleRows | None = None
        self.deaths = 0

    def resize(self, count: int) -> None:
        """Go on with more or fewer readers."""
        self.count = count
        self.restart()

    def restart(self) -> None:
        """Let the processes go; the next piece starts new ones."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def started(self) -> Executor:
        """The processes, started when they are needed."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(
                self.count,
                mp_context=multiprocessing.get_context("spawn"),  # LMDB and threads don't fork
                initializer=functools.partial(hold, self.rows),
            )
        return self.pool

    def pids(self) -> list[int]:
        """The readers' process numbers."""
        return list(self.pool._processes) if self.pool is not None else []

    def stream(self, rows: SampleRows, pieces: Sequence[RowGroupPiece]) -> Iterator[SampleBatch]:
        """Batches in order; pieces of readers that died, or were sent home, are asked for again."""
        if self.rows is not rows:
            self.restart()
            self.rows = rows
        waiting: collections.deque[tuple[RowGroupPiece, Any, Future[SampleBatch]]] = (
            collections.deque()
        )
        left = collections.deque(pieces)
        while left or waiting:
            while left and len(waiting) <= self.count * self.ahead:
                waiting.append(self.submit(left.popleft()))
            _, pool, future = waiting[0]
            try:
                batch = future.result()
            except (BrokenProcessPool, CancelledError) as error:
                self.replace(pool, error)
                waiting = collections.deque(
                    item if item[1] is self.pool else self.submit(item[0]) for item in waiting
                )
                continue
            waiting.popleft()
            self.deaths = 0
            yield batch

    def submit(self, piece: RowGroupPiece) -> tuple[RowGroupPiece, Any, Future[SampleBatch]]:
        """Ask for a piece."""
        for _ in range(DEATHS):
            pool = self.started()
            try:
                return piece, pool, pool.submit(read_held, piece)
            except (BrokenProcessPool, RuntimeError) as error:
                self.replace(pool, error)
        raise JoyError("readers die as soon as they start")

    def replace(self, pool: Any, error: BaseException) -> None:
        """New processes for those of a pool that is broken."""
        self.deaths += 1
        if self.deaths > DEATHS:
            raise JoyError(
                f"{self.deaths} times in a row a reader was killed: {error}",
                help="look at the memory: a row group is read as a whole (fewer readers, or "
                "smaller row groups)",
            ) from None
        if pool is self.pool:
            self.restart()

    def close(self) -> None:
        """Stop reading."""
        self.restart()


class RayReaders:
    """Ray Data, on the machines of a Ray cluster (RAY_ADDRESS) or on this one."""

    def __init__(self, count: int) -> None:
        from joymigrate.extras import need

        need("cluster", "ray", what="data.readers: {engine: ray}")
        self.count = count

    def stream(self, rows: SampleRows, pieces: Sequence[RowGroupPiece]) -> Iterator[SampleBatch]:
        """Batches in order, as a stream of Ray Data."""
        import pickle

        import ray

        ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        held = ray.put(rows)

        def read(row: dict[str, Any]) -> dict[str, Any]:
            piece = RowGroupPiece(
                **{key: int(row[key]) for key in ("group", "first", "last", "epoch")}
            )
            return {"batch": pickle.dumps(ray.get(held).read(piece))}

        items = [dataclasses.asdict(piece) for piece in pieces]
        stream = ray.data.from_items(items, override_num_blocks=len(items)).map(
            read, concurrency=self.count
        )
        for row in stream.iter_rows():
            yield pickle.loads(row["batch"])

    def close(self) -> None:
        """Ray stays as it is: others may use it."""
