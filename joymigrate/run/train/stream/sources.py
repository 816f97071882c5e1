"""Rows of a stream as Arrow tables, each with the position behind it.

A position is small JSON that is published with the version that learned the rows before it. Whoever
starts there reads every later row once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.run.train.samples.encode import check_columns
from joymigrate.run.train.samples.schema import FeatureSchema

Position = dict[str, Any]
Tell = Callable[[str], None]
RETRY_S = 0.5  # between tries while Redis is away
ARROW, ROW = b"arrow", b"row"  # fields of an entry: many rows as Arrow IPC, or one as JSON


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows in their order. `position` stands behind them; `broken` entries by reason."""

    table: Any
    position: Position
    where: str
    broken: Mapping[str, int]


class StreamSource(Protocol):
    """`read` gives at most about `count` rows, or None after `wait_s` seconds without one."""

    def read(self, position: Position, count: int, wait_s: float) -> StreamRows | None: ...
    def close(self) -> None: ...


# -- a folder -------------------------------------------------------------------------------------


class WatchedFolder:
    """Parquet files that appear in a folder, in the order of their names.

    A file is written under a name that starts with a dot, or ends otherwise, and renamed when it is
    whole. Later files have later names.
    """

    POLL_S = 0.1

    def __init__(self, folder: Path, schema: FeatureSchema) -> None:
        self.folder, self.schema = folder, schema
        if not folder.is_dir():
            raise JoyError("no such folder to watch", where=str(folder), help="make it first")

    def names(self) -> list[str]:
        """The files that are there."""
        return sorted(
            path.name for path in self.folder.glob("*.parquet") if not path.name.startswith(".")
        )

    def read(self, position: Position, count: int, wait_s: float) -> StreamRows | None:
        """Rows of one file."""
        until = time.monotonic() + wait_s
        while True:
            found = self.next(position, count)
            if found is not None or time.monotonic() >= until:
                return found
            time.sleep(min(self.POLL_S, max(0.0, until - time.monotonic())))

    def next(self, position: Position, count: int) -> StreamRows | None:
        """Rows behind the position, if there are any."""
        from joymigrate.run.train.samples.parquet import open_file

        file, row = position.get("file", ""), position.get("row", 0)
        names = self.names()
        before = [name for name in names if name <= file]
        if len(before) > position.get("files", 0):
            raise JoyError(
                f"a file appeared before '{file}', which is read already",
                where=str(self.folder),
                help="give later files later names, such as the time in a fixed width",
            )
        for name in [file, *names[len(before) :]] if file in names else names[len(before) :]:
            path = str(self.folder / name)
            first = row if name == file else 0
            whole = open_file(path)
            if first >= whole.metadata.num_rows:
                continue
            check_columns(self.schema, whole.schema_arrow.names, path)
            table = rows_of(whole, self.schema.columns(), first, count)
            files = len([one for one in names if one <= name])
            behind = {"file": name, "row": first + len(table), "files": files}
            return StreamRows(table, behind, f"{path} from row {first}", {})
        return None

    def close(self) -> None:
        """Nothing is open."""


def rows_of(file: Any, columns: list[str], first: int, count: int) -> Any:
    """Rows `first … first + count - 1` of a Parquet file, reading only their row groups."""
    import pyarrow as pa

    parts, start = [], 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        low, high = max(first, start), min(first + count, start + size)
        if low < high:
            table = file.read_row_group(group, columns=columns)
            parts.append(table.slice(low - start, high - low))
        start += size
    return pa.concat_tables(parts)


# -- Redis ----------------------------------------------------------------------------------------


class RedisStream:
    """Entries of a Redis stream: one row as JSON in `row`, or many as Arrow IPC in `arrow`.

    While Redis is away the reader waits, and says so once. Entries that were trimmed before they
    were read are an error: they are lost.
    """

    def __init__(self, url: str, stream: str, schema: FeatureSchema, tell: Tell) -> None:
        from redis import Redis

        self.schema, self.tell, self.stream = schema, tell, stream
        self.where = f"{url}#{stream}"
        self.redis: Any = Redis.from_url(url)
        self.gone = False
        self.removed = 0  # entries that the stream has no more

    def read(self, position: Position, count: int, wait_s: float) -> StreamRows | None:
        """Entries behind the position."""
        from redis import ConnectionError, RedisError, TimeoutError

        until = time.monotonic() + wait_s
        while True:
            try:
                entries = self.entries(position, count, until - time.monotonic())
            except (ConnectionError, TimeoutError) as error:
                if not self.gone:
                    self.tell(f"Redis is gone ({error}); waiting for it at {self.where}")
                self.gone = True
                if time.monotonic() >= until:
                    return None
                time.sleep(RETRY_S)
                continue
            except RedisError as error:
                raise JoyError(f"Redis refuses: {error}", where=self.where) from None
            if self.gone:
                self.tell("Redis is back")
                self.gone = False
            return self.rows(entries, position) if entries else None

    def entries(self, position: Position, count: int, wait_s: float) -> list[Any]:
        """Raw entries; blocks for at most `wait_s`."""
        after = position.get("id", "0-0")
        found = self.redis.xread({self.stream: after}, count, max(1, int(wait_s * 1000)))
        self.check(position)
        return list(found[0][1]) if found else []

    def check(self, position: Position) -> None:
        """Nothing between the position and the first entry was deleted or forgotten.

        Called behind the read: what was trimmed before it is seen, what is trimmed later is held.
        """
        from redis import ResponseError

        after = position.get("id", "0-0")
        try:
            known = self.redis.xinfo_stream(self.stream)
        except ResponseError:
            known = None  # no entry yet
        last = text(known["last-generated-id"]) if known else "0-0"
        if order(last) < order(after):
            raise JoyError(
                f"the stream ends at {last}, and this run has read up to {after}",
                where=self.where,
                help="Redis lost its data, or it is another stream: restore it, or start a new run",
            )
        self.removed = known["entries-added"] - known["length"] if known else 0
        first = known["first-entry"] if known else None
        behind = first is None or order(text(first[0])) > order(after)
        lost = self.removed - position.get("entries", self.removed)
        if behind and lost > 0:
            raise JoyError(
                f"{lost} entries behind {after} were trimmed before they were read",
                where=self.where,
                help="these rows are lost: keep more (XTRIM), or start a new run behind them",
            )
        deleted = text(known.get("max-deleted-entry-id", "0-0")) if known else "0-0"
        if order(deleted) > order(after):
            raise JoyError(
                f"entries up to {deleted} were deleted, and this run has read up to {after} only",
                where=self.where,
                help="rows are lost: trim the stream later (XTRIM), or start a new run behind them",
            )

    def rows(self, entries: list[Any], position: Position) -> StreamRows:
        """Entries as one table."""
        import pyarrow as pa

        parts: list[Any] = []
        records: list[dict[str, Any]] = []
        broken: dict[str, int] = {}
        kinds = arrow_schema(self.schema)
        for name, fields in entries:
            place = f"{self.where} {text(name)}"
            try:
                if ARROW in fields:
                    if records:
                        parts.append(table_of(records, kinds))
                        records = []
                    table = pa.ipc.open_stream(fields[ARROW]).read_all()
                    check_columns(self.schema, table.column_names, place)
                    parts.append(table.select(kinds.names).cast(kinds))
                else:
                    records.append(record_of(fields, kinds))
            except (ValueError, KeyError, pa.ArrowException, JoyError) as error:
                refuse_entry(self.schema, error, place, broken)
        if records:
            parts.append(table_of(records, kinds))
        table = pa.concat_tables(parts) if parts else kinds.empty_table()
        last = text(entries[-1][0])
        read = position.get("entries", self.removed) + len(entries)
        behind = {"id": last, "entries": read}
        return StreamRows(table, behind, f"{self.where} up to {last}", broken)

    def close(self) -> None:
        """Let the connection go."""
        self.redis.close()


def refuse_entry(
    schema: FeatureSchema, error: Exception, place: str, broken: dict[str, int]
) -> None:
    """An entry that is no row: an error, or counted."""
    reason = error.what if isinstance(error, JoyError) else " ".join(str(error).split())[:160]
    if schema.on_error == "stop":
        raise JoyError(
            f"the entry is no row of this schema: {reason}",
            where=place,
            help="write rows as the schema says, or leave such entries out: on_error: skip",
        ) from None
    broken["the entry is no row"] = broken.get("the entry is no row", 0) + 1


def text(value: Any) -> str:
    """An id as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def order(name: str) -> tuple[int, int]:
    """Ids of entries by time and number."""
    first, _, second = name.partition("-")
    return int(first), int(second or 0)


def record_of(fields: Mapping[bytes, bytes], kinds: Any) -> dict[str, Any]:
    """One row from JSON; every value fits its column."""
    import pyarrow as pa

    row = json.loads(fields[ROW])
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {type(row).__name__}")
    for name in kinds.names:
        if name not in row:
            raise ValueError(f"it has no '{name}'")
        value = row[name]
        try:
            pa.scalar(value, kinds.field(name).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise ValueError(f"'{name}' is {value!r}, not {kinds.field(name).type}") from None
    return {name: row[name] for name in kinds.names}


def table_of(records: list[dict[str, Any]], kinds: Any) -> Any:
    """Rows as a table."""
    import pyarrow as pa

    return pa.Table.from_pylist(records, schema=kinds)


def arrow_schema(schema: FeatureSchema) -> Any:
    """The Arrow type of every column that the features read."""
    import pyarrow as pa

    kinds = {
        "id": pa.int64(), "text": pa.string(), "number": pa.float64(),
        "ids": pa.list_(pa.int64()), "texts": pa.list_(pa.string()),
    }  # fmt: skip
    known: dict[str, Any] = {}
    for name, feature in schema.features.items():
        if feature.type == "sequence":
            known[schema.column(name)] = kinds["texts" if feature.text else "ids"]
        elif feature.type != "cross":
            known[schema.column(name)] = kinds[feature.type]
    if schema.histories is not None:
        known |= {schema.histories.key: pa.int64()}
        if schema.histories.count is not None:
            known |= {schema.histories.count: pa.int64()}
    for name in schema.columns():
        known.setdefault(name, pa.int64() if name == schema.group else pa.float64())
    return pa.schema([(name, known[name]) for name in schema.columns()])
