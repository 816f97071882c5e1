"""The sparse part: rows of a shard's ids over HTTP, of the version that is asked for.

Shard i of N holds the ids with `id % N == i`. It follows published versions like the dense part and
keeps what the newest ones replaced, so that a dense part that is a few versions behind still gets
rows of exactly its version, or 409, never a mixture. A dense part that stays behind (an operator
went back) says so, and the shard goes no further than it can serve.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import orjson

from joymigrate import __version__
from joymigrate.run.serve.monitor.metrics import MetricFamily, Metrics, MetricValue
from joymigrate.run.serve.ranking.results import WeightGate
from joymigrate.run.serve.ranking.rows import Bytes, Ids, RedisRows
from joymigrate.run.serve.web.answering import answer_request
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import Ask, Reply, data


class Follower(Protocol):
    """What follows published versions."""

    def stop(self) -> None: ...


log = logging.getLogger("joymigrate.serve")
KEPT_VERSIONS = 8
NEEDED_SECONDS = 15.0  # how long a dense part that says nothing more is waited for
VERSION_HEADER = "X-Joymigrate-Version"  # which dense part asks, and its version
ROWS_PATH = "/v1/rows"


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """What a version replaced in one table: ids ascending, and the rows before."""

    table: str
    ids: Ids
    rows: Bytes


@dataclass(slots=True)
class Shard:
    """Tables by name, of which the ids `index` modulo `count` are asked here."""

    tables: dict[str, Bytes]
    index: int = 0
    count: int = 1
    redis: RedisRows | None = None
    number: int = 0  # the version that the tables hold
    history: deque[tuple[int, list[ReplacedRows]]] = field(
        default_factory=lambda: deque(maxlen=KEPT_VERSIONS)
    )  # newest last: a version, and what it replaced
    gate: WeightGate = field(default_factory=WeightGate)
    needed: dict[str, tuple[int, float]] = field(default_factory=dict)
    # by dense part: its version, and when it last said so

    @property
    def oldest(self) -> int:
        """The oldest version whose rows can still be given."""
        return self.history[0][0] - 1 if self.history else self.number

    def hold(self, part: str, number: int, now: float) -> None:
        """A dense part has this version, and will ask for its rows."""
        self.needed[part] = number, now

    def must_wait(self, number: int, now: float) -> bool:
        """Whether version `number` would push out rows that a dense part still asks for."""
        said_by = dict(self.needed)  # another thread puts what it hears in
        for part, (_, told) in said_by.items():
            if now - told >= NEEDED_SECONDS:
                self.needed.pop(part, None)
        held = [one for one, told in said_by.values() if now - told < NEEDED_SECONDS]
        if number == self.number + 1:
            return len(self.history) == KEPT_VERSIONS and self.oldest in held
        # A snapshot pushes all out. Who has the newest version held here comes behind it.
        return any(self.oldest <= one < self.number for one in held)

    def read(self, name: str, ids: Ids, number: int) -> Bytes:
        """Rows of a version; raises `HttpRefusal`."""
        table = self.tables.get(name)
        if table is None:
            raise HttpRefusal(404, f"there is no table '{name}' here", param="tables")
        if len(ids) and (ids.min() < 0 or ids.max() >= len(table)):
            bad = ids.min() if ids.min() < 0 else ids.max()
            raise HttpRefusal(
                400, f"'{name}' has rows 0 to {len(table) - 1}, id {bad} was asked", param="ids"
            )
        if (ids % self.count != self.index).any():
            raise HttpRefusal(
                400,
                f"this is shard {self.index} of {self.count}: other ids were asked",
                param="ids",
            )
        if self.redis is not None:
            return self.redis.read(name, ids, time.monotonic())
        with self.gate.batch():
            if not self.oldest <= number <= self.number:
                held = f"{self.oldest} to {self.number}"
                raise HttpRefusal(409, f"version {number} is not held, only {held}", code="version")
            found: Bytes = np.asarray(table[ids])
            for made, replaced in reversed(self.history):
                if made <= number:
                    break
                for one in replaced:
                    if one.table == name:
                        restore(one, ids, found)
        return found

    def put(self, number: int, writes: list[ReplacedRows]) -> None:
        """Apply a version's rows as one change; ids of other shards are left out."""
        with self.gate.change():
            before = []
            for one in writes:
                mine = one.ids % self.count == self.index
                ids, rows = one.ids[mine], one.rows[mine]
                before.append(ReplacedRows(one.table, ids, self.tables[one.table][ids]))
                self.tables[one.table][ids] = rows
            if number == self.number + 1:
                self.history.append((number, before[::-1]))
            else:  # a snapshot: what was before it is no version that anybody asks
                self.history.clear()
            self.number = number

    def back(self) -> int | None:
        """Take the newest version back; the number that is held then, None: nothing is kept."""
        with self.gate.change():
            if not self.history:
                return None
            number, replaced = self.history.pop()
            for one in replaced:
                self.tables[one.table][one.ids] = one.rows
            self.number = number - 1
            return self.number


def restore(one: ReplacedRows, ids: Ids, rows: Bytes) -> None:
    """Put the replaced rows back into a copy."""
    if not len(one.ids):
        return
    places = np.minimum(np.searchsorted(one.ids, ids), len(one.ids) - 1)
    there = one.ids[places] == ids
    rows[there] = one.rows[places[there]]


def pack(head: dict[str, Any], *parts: Any) -> bytes:
    """JSON with its length before it, and bytes behind."""
    said = orjson.dumps(head)
    return b"".join([struct.pack("<I", len(said)), said, *parts])


def unpack(body: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
    """The JSON and the bytes of a message; raises `ValueError`."""
    view = memoryview(body)
    if len(view) < 4:
        raise ValueError("the message ends in its length")
    (size,) = struct.unpack("<I", view[:4])
    head = orjson.loads(view[4 : 4 + size])
    if not isinstance(head, dict):
        raise ValueError("the message has no object")
    return head, view[4 + size :]


@dataclass(slots=True)
class ShardService:
    """A shard behind the HTTP server (`Answering`)."""

    shard: Shard
    limits: HttpLimits = field(default_factory=HttpLimits)
    keys: Keys = field(default_factory=Keys)
    versions: Follower | None = None
    draining: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    asked: MetricValue = field(init=False)
    outcomes: MetricFamily = field(init=False)

    def __post_init__(self) -> None:
        counted = self.metrics.counter
        self.asked = counted("joymigrate_ranking_rows_asked", "Rows that were asked").of()
        self.outcomes = counted("joymigrate_requests", "Requests by outcome", "outcome")
        self.metrics.gauge("joymigrate_ranking_version_number", "The version that is held",
                           ask=lambda: {(): float(self.shard.number)})  # fmt: skip
        redis = self.shard.redis
        if redis is not None:
            for name in ("hits", "misses"):
                self.count_cache(redis, name)

    def count_cache(self, redis: RedisRows, name: str) -> None:
        """Hits or misses of the hot rows."""
        self.metrics.counter(f"joymigrate_ranking_row_cache_{name}", f"{name} of hot rows").ask = (
            lambda: {(): float(sum(getattr(one, name) for one in redis.caches.values()))}
        )

    async def answer(self, ask: Ask) -> Reply:
        """Answer a request; never raises but when it is cancelled."""
        return await answer_request(ask, self.keys, self.route)

    async def route(self, ask: Ask) -> Reply:
        """Find what a path asks for."""
        shard = self.shard
        if ask.path == ROWS_PATH and ask.method == "POST":
            if shard.redis is not None:
                return await asyncio.to_thread(self.rows, ask)
            return self.rows(ask)
        if ask.path in ("/health", "/ready"):
            if ask.path == "/ready" and self.draining:
                raise HttpRefusal(503, "stopping")
            part, _, held = ask.headers.get(VERSION_HEADER, "").partition(" ")
            if part and held.isdecimal():
                shard.hold(part, int(held), time.monotonic())
            return data({"status": "ok", "number": shard.number, "oldest": shard.oldest,
                         "shard": shard.index, "of": shard.count})  # fmt: skip
        if ask.path == "/metrics":
            return Reply(200, self.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
        if ask.path == "/version":
            return data({"version": __version__})
        if ask.path == "/v1/tables":
            return data({name: list(table.shape) for name, table in shard.tables.items()})
        raise HttpRefusal(404, f"there is no {ask.path}; this is a sparse part")

    def rows(self, ask: Ask) -> Reply:
        """POST /v1/rows: `{"version", "tables": [[name, count], …]}` and int64 ids → rows."""
        try:
            head, rest = unpack(ask.body)
            tables = [(str(name), int(count)) for name, count in head["tables"]]
            number = int(head["version"])
            ids = np.frombuffer(rest, np.int64)
        except (ValueError, KeyError, TypeError) as error:
            raise HttpRefusal(400, f"no request for rows: {error}") from None
        if sum(count for _, count in tables) != len(ids) or any(count < 0 for _, count in tables):
            raise HttpRefusal(400, f"{len(ids)} ids came, the tables name others", param="ids")
        start, parts, widths = 0, [], []
        for name, count in tables:
            found = self.shard.read(name, ids[start : start + count], number)
            parts.append(np.ascontiguousarray(found).data)
            widths.append([name, int(found.shape[1])])
            start += count
        self.asked.add(len(ids))
        body = pack({"version": number, "tables": widths}, *parts)
        return Reply(200, body, "application/octet-stream")

    def record(self, ask: Ask, status: int, *, gone: bool = False) -> None:
        """Count a request."""
        if ask.method == "POST":
            self.outcomes.of("ok" if status < 400 else "error").add()

    async def close(self) -> None:
        """Follow versions no more."""
        if self.versions is not None:
            self.versions.stop()
