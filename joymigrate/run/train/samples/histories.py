"""Long histories stored once per user, in LMDB or Redis, and stitched into rows when they are read.

A user's events lie in pieces of 256, each with its fields as arrays of the smallest whole type.
Adding events writes the last piece and the count; reading the events before a row takes the pieces
that the row needs.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.train.samples.batch import Array, JaggedIds, ranges

PIECE = 256  # events; below the 2 KiB from which LMDB gives a value pages of its own
COUNT = 0xFFFFFFFF  # the piece number that holds a user's count
FIELDS = b"fields"
MAP_BYTES = 1 << 40  # of address space; the file grows as it is written
TIME = "time"


class LmdbPieces:
    """Pieces in a memory-mapped file; any number of readers, one writer at a time."""

    def __init__(self, folder: Path, *, write: bool) -> None:
        import lmdb

        self.where = str(folder)
        if not write and not (folder / "data.mdb").is_file():
            raise JoyError(
                "no history store there", where=self.where, help="joymigrate train histories"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.environment: Any = lmdb.open(
            str(folder), map_size=MAP_BYTES, readonly=not write, lock=True, max_readers=512
        )

    def get(self, keys: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The values of keys, in one transaction."""
        with self.environment.begin() as step:
            return [step.get(pack_key(*key)) for key in keys]

    def put(self, items: Sequence[tuple[int, int, bytes]]) -> None:
        """Set values, in one durable transaction."""
        with self.environment.begin(write=True) as step:
            for user, number, value in items:
                step.put(pack_key(user, number), value)

    def fields(self) -> list[str] | None:
        """The names of the fields."""
        with self.environment.begin() as step:
            raw = step.get(FIELDS)
        return None if raw is None else json.loads(raw)

    def set_fields(self, names: Sequence[str]) -> None:
        """Name the fields."""
        with self.environment.begin(write=True) as step:
            step.put(FIELDS, json.dumps(list(names)).encode())

    def close(self) -> None:
        """Unmap the file."""
        self.environment.close()


class RedisPieces:
    """Pieces in Redis: one hash per user."""

    def __init__(self, url: str, prefix: str) -> None:
        from redis import Redis

        self.where = f"{url}#{prefix}"
        self.prefix = prefix
        self.redis: Any = Redis.from_url(url)

    def run(self, fill: Any) -> list[Any]:
        """Several commands in one step."""
        from redis import RedisError

        try:
            with self.redis.pipeline(transaction=True) as step:
                fill(step)
                return list(step.execute())
        except RedisError as error:
            raise JoyError(
                f"Redis does not answer: {error}",
                where=self.where,
                help="start it; nothing is lost",
            ) from None

    def get(self, keys: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The values of keys, in one step."""

        def fill(step: Any) -> None:
            for user, number in keys:
                step.hget(f"{self.prefix}:history:{user}", number)

        return self.run(fill) if keys else []

    def put(self, items: Sequence[tuple[int, int, bytes]]) -> None:
        """Set values, in one transaction."""

        def fill(step: Any) -> None:
            for user, number, value in items:
                step.hset(f"{self.prefix}:history:{user}", number, value)

        self.run(fill)

    def fields(self) -> list[str] | None:
        """The names of the fields."""
        raw = self.run(lambda step: step.get(f"{self.prefix}:history:fields"))[0]
        return None if raw is None else json.loads(raw)

    def set_fields(self, names: Sequence[str]) -> None:
        """Name the fields."""
        text = json.dumps(list(names))
        self.run(lambda step: step.set(f"{self.prefix}:history:fields", text))

    def close(self) -> None:
        """Let the connections go."""
        self.redis.close()


def pack_key(user: int, number: int) -> bytes:
    """A key whose order is that of users and their pieces."""
    return struct.pack(">qI", user, number)


OPEN: dict[tuple[str, bool], HistoryStore] = {}
LOCK = threading.Lock()  # LMDB refuses a second environment in one process


def open_histories(place: str, *, write: bool = False) -> HistoryStore:
    """The store at a folder or at redis://HOST:PORT/DB#PREFIX; a process opens each once."""
    if "://" in place:
        url, _, prefix = place.partition("#")
        return HistoryStore(RedisPieces(url, prefix or "joymigrate"))
    key = (str(Path(place).resolve()), write)
    with LOCK:
        if key not in OPEN:
            OPEN[key] = HistoryStore(LmdbPieces(Path(place), write=write))
        return OPEN[key]


def close_all() -> None:
    """Close the stores of this process: LMDB must not be open when a process forks."""
    for store in OPEN.values():
        store.pieces.close()
    OPEN.clear()


class HistoryStore:
    """Events by user: fields of whole numbers, in the order of time. Not thread-safe to write."""

    def __init__(self, pieces: LmdbPieces | RedisPieces) -> None:
        self.pieces = pieces
        self.names = pieces.fields()

    # -- writing ------------------------------------------------------------------------------

    def append(self, users: Array, fields: Mapping[str, Array]) -> None:
        """Add events [N] behind what their users have; the events of a user stand in order."""
        if self.names is None:
            self.pieces.set_fields(list(fields))
            self.names = list(fields)
        if list(fields) != self.names:
            raise JoyError(
                f"the events have {', '.join(fields)}, the store has {', '.join(self.names)}",
                where=self.pieces.where,
                help="give every event the fields of the first ones",
            )
        order = np.argsort(users, kind="stable")
        sorted_users = users[order]
        firsts = np.flatnonzero(np.diff(sorted_users, prepend=sorted_users[:1] - 1))
        columns = {name: np.asarray(values)[order] for name, values in fields.items()}
        owners = sorted_users[firsts]
        counts = self.counts(owners)
        tails = self.pieces.get(
            [(int(u), int(c) // PIECE) for u, c in zip(owners, counts, strict=True)]
        )
        items: list[tuple[int, int, bytes]] = []
        lasts = np.append(firsts[1:], len(users))
        for user, count, tail, first, last in zip(
            owners, counts, tails, firsts, lasts, strict=True
        ):
            new = [columns[name][first:last] for name in self.names]
            items += extend_pieces(int(user), int(count), tail, new)
        self.pieces.put(items)

    def counts(self, users: Array) -> Array:
        """How many events each user has."""
        raw = self.pieces.get([(int(user), COUNT) for user in users])
        return np.array(
            [0 if one is None else struct.unpack(">q", one)[0] for one in raw], np.int64
        )

    # -- reading ------------------------------------------------------------------------------

    def before_count(self, users: Array, counts: Array, length: int, field: str) -> JaggedIds:
        """The last `length` of the first `counts` events of each row's user."""
        place = self.place(field)
        starts = np.maximum(counts - length, 0)
        known, row_user = np.unique(users, return_inverse=True)
        lows = np.full(len(known), np.iinfo(np.int64).max)
        highs = np.zeros(len(known), dtype=np.int64)
        np.minimum.at(lows, row_user, starts)
        np.maximum.at(highs, row_user, counts)
        # Whole pieces from that of the first event wanted to that of the last one.
        first = lows // PIECE
        pieces = np.where(highs > lows, (highs - 1) // PIECE - first + 1, 0)
        owner = np.repeat(np.arange(len(known)), pieces)
        numbers = ranges(first, pieces)
        values, sizes = self.read(known[owner], numbers, place)
        held = np.bincount(owner, weights=sizes, minlength=len(known)).astype(np.int64)
        base = np.cumsum(held) - held - first * PIECE  # where event 0 of a user would stand
        last = np.minimum(counts, first[row_user] * PIECE + held[row_user])
        lengths = np.maximum(last - starts, 0)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return JaggedIds(values[ranges(base[row_user] + starts, lengths)], offsets)

    def before_time(self, users: Array, times: Array, length: int, field: str) -> JaggedIds:
        """The last `length` events of each row's user before the row's time (seconds)."""
        known, row_user = np.unique(users, return_inverse=True)
        totals = self.counts(known)
        stamps = self.before_count(known, totals, int(totals.max(initial=0)), TIME)
        # One sorted search: every user's times moved behind those of the user before.
        span = max(float(stamps.values.max(initial=0)), float(times.max(initial=0))) + 1.0
        owner = np.repeat(np.arange(len(known)), stamps.lengths)
        keys = stamps.values + owner * span
        ends = np.searchsorted(keys, times + row_user * span, "left")
        counts = np.clip(ends - stamps.offsets[row_user], 0, totals[row_user])
        return self.before_count(users, counts, length, field)

    def read(self, users: Array, numbers: Array, place: int) -> tuple[Array, Array]:
        """One field of pieces, one after another, and the events of each."""
        keys = list(zip(users.tolist(), numbers.tolist(), strict=True))
        found = [field_of(one, place) for one in self.pieces.get(keys)]
        sizes = np.array([len(one) for one in found], dtype=np.int64)
        values = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        return values.astype(np.int64), sizes

    def place(self, field: str) -> int:
        """Which of the fields it is."""
        names = self.names if self.names is not None else []
        if field not in names:
            raise JoyError(
                f"the history store has no field '{field}'",
                where=self.pieces.where,
                help=f"it has {', '.join(names) or 'none'}",
            )
        return names.index(field)


def extend_pieces(
    user: int, count: int, tail: bytes | None, new: Sequence[Array]
) -> list[tuple[int, int, bytes]]:
    """The pieces that new events of one user change, and the count."""
    number, held = divmod(count, PIECE)
    columns = list(new)
    if held:
        assert tail is not None
        columns = [
            np.concatenate([field_of(tail, place), values]) for place, values in enumerate(new)
        ]
    items = [
        (user, number + at // PIECE, encode_piece([one[at : at + PIECE] for one in columns]))
        for at in range(0, len(columns[0]), PIECE)
    ]
    return [*items, (user, COUNT, struct.pack(">q", count + len(new[0])))]


def build(files: Sequence[Path], place: str, key: str, fields: Sequence[str]) -> int:
    """Append the events of Parquet files, in their order, to a store; how many there were."""
    from pyarrow import types

    from joymigrate.run.train.samples.parquet import open_file

    store = open_histories(place, write=True)
    total = 0
    for path in files:
        file = open_file(str(path))
        names = file.schema_arrow.names
        wanted = list(fields) or [name for name in names if name != key]
        for name in (key, *wanted):
            if name not in names or not types.is_integer(file.schema_arrow.field(name).type):
                raise JoyError(
                    f"'{name}' is no column of whole numbers",
                    where=str(path),
                    help=f"its columns are {', '.join(names)}; --field names those to keep",
                )
        for batch in file.iter_batches(1 << 20, columns=[key, *wanted]):
            columns = {name: batch.column(name).to_numpy() for name in wanted}
            store.append(batch.column(key).to_numpy(), columns)
            total += batch.num_rows
    return total


WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.int64}


def encode_piece(columns: Sequence[Array]) -> bytes:
    """A piece: events, then per field one byte for its width, its smallest value, the rest."""
    parts = [struct.pack("<H", len(columns[0]))]
    for values in columns:
        least = int(values.min(initial=np.iinfo(np.int64).max)) if len(values) else 0
        above = values.astype(np.int64) - least
        top = int(above.max(initial=0))
        width = next(w for w in (0, 1, 2, 4, 8) if w == 8 or top < 1 << (8 * w))
        rest = above.astype(WIDTHS[width]).tobytes() if width else b""
        parts.append(struct.pack("<Bq", width, least) + rest)
    return b"".join(parts)


def field_of(data: bytes | None, place: int) -> Array:
    """One field of a piece; a piece that is not there has no events."""
    if data is None:
        return np.empty(0, dtype=np.int64)
    (events,) = struct.unpack_from("<H", data)
    at = 2
    for _ in range(place):
        at += 9 + events * data[at]
    width, least = struct.unpack_from("<Bq", data, at)
    if not width:
        return np.full(events, least, dtype=np.int64)
    values = np.frombuffer(data, WIDTHS[width], events, at + 9)
    found: Array = values.astype(np.int64) + least
    return found
