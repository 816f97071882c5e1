"""The dense part's side of sparse shards: rows of one version from all of them, or which is lost.

A shard is one or more addresses with the same rows. All shards are asked before the first answer
is read. An address that refuses, hangs or says nothing useful is left alone until a probe finds it
well again; its shard's next address answers instead.
"""

from __future__ import annotations

import http.client
import logging
import os
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking.rows import Bytes, HotRows, Ids
from joymigrate.run.serve.ranking.shard import ROWS_PATH, VERSION_HEADER, pack, unpack

log = logging.getLogger("joymigrate.serve")
PROBE_SECONDS = 0.2
TELL_SECONDS = 2.0  # how often all addresses hear which version this part has
Sent = tuple["Address", Any, bool]  # asked on a connection, which was used before
TROUBLE = (OSError, http.client.HTTPException, ValueError, KeyError)


@dataclass(slots=True, eq=False)
class Address:
    """One server of a shard."""

    url: str
    up: bool = True
    reason: str = ""
    number: int = 0  # the version that it held at the last probe
    oldest: int = 0  # and the oldest one whose rows it could give

    def connect(self, seconds: float) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=seconds, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(host, port, timeout=seconds)


@dataclass(slots=True)
class ShardRequest:
    """What one shard is asked: tables with ids, and where their rows go."""

    shard: int
    body: bytes
    parts: list[tuple[str, Ids]]  # table, positions among the batch's ids of that table
    tried: set[str] = field(default_factory=set)


@dataclass(slots=True)
class RemoteRows:
    """Rows by table, and the shards whose rows are zeros in them."""

    tables: dict[str, Bytes]
    lost: tuple[int, ...] = ()


class Shards:
    """All shards. Thread-safe: each thread has connections of its own."""

    def __init__(
        self, addresses: Sequence[Sequence[str]], *, seconds: float = 0.05, cache: int = 0
    ) -> None:
        self.shards = [[Address(url.rstrip("/")) for url in urls] for urls in addresses]
        self.seconds = seconds
        self.cache_rows = cache
        self.caches: dict[str, HotRows] = {}
        self.cached = -1  # the version of the cached rows
        self.lock = threading.Lock()
        self.local = threading.local()
        self.stopping = threading.Event()
        self.failures = 0
        self.name = uuid.uuid4().hex  # by which shards know this dense part
        self.number: int | None = 0  # the version that rows are asked of; None: no shard waits
        self.key = os.environ.get("JOYMIGRATE_SHARD_KEY", "")
        self.prober = threading.Thread(target=self.probe, name="shards", daemon=True)

    def start(self, seconds: float) -> None:
        """Wait until every shard has an address that answers. Raises `JoyError`."""
        end = time.monotonic() + seconds
        while True:
            self.look(everywhere=True)
            silent = [place for place, shard in enumerate(self.shards)
                      if not any(one.up for one in shard)]  # fmt: skip
            if not silent:
                break
            if time.monotonic() > end:
                shard = self.shards[silent[0]]
                raise JoyError(f"shard {silent[0]} of {len(self.shards)} does not answer: "
                               f"{shard[0].reason}", where=", ".join(one.url for one in shard),
                               help=f"joymigrate serve MODEL --part sparse --shard {silent[0]}/"
                               f"{len(self.shards)}")  # fmt: skip
            time.sleep(PROBE_SECONDS)
        self.prober.start()

    def stop(self) -> None:
        """Probe no more."""
        self.stopping.set()
        if self.prober.is_alive():
            self.prober.join(timeout=5)

    # Rows

    def fetch(self, ids: Mapping[str, Ids], widths: Mapping[str, int], number: int) -> RemoteRows:
        """Rows [N, width] of each table's ids, of one version; zeros for those of lost shards."""
        found = {name: np.zeros((len(one), widths[name]), np.uint8) for name, one in ids.items()}
        missing = self.from_cache(ids, found, number)
        waiting = self.divide(ids, missing, number)
        end = time.monotonic() + self.seconds
        lost: list[int] = []
        while waiting:
            asked = [(one, self.send(one, end)) for one in waiting]
            again = []
            for one, sent in asked:
                if sent is None:
                    lost.append(one.shard)
                elif not self.receive(one, sent, found, end):
                    again.append(one)
            waiting = again
        self.into_cache(ids, missing, found, lost, number)
        return RemoteRows(found, tuple(sorted(lost)))

    def divide(
        self, ids: Mapping[str, Ids], missing: Mapping[str, Ids], number: int
    ) -> list[ShardRequest]:
        """What each shard is asked."""
        wanted = []
        count = len(self.shards)
        for shard in range(count):
            parts = []
            for name, places in missing.items():
                mine = places[ids[name][places] % count == shard]
                if len(mine):
                    parts.append((name, mine))
            if parts:
                head = {"version": number, "tables": [[name, len(at)] for name, at in parts]}
                body = pack(head, *(ids[name][at].tobytes() for name, at in parts))
                wanted.append(ShardRequest(shard, body, parts))
        return wanted

    def send(self, wanted: ShardRequest, end: float) -> Sent | None:
        """Ask the next address of a shard that is up; None where there is none left in time."""
        for address in self.shards[wanted.shard]:
            while address.up and address.url not in wanted.tried:
                left = end - time.monotonic()
                if left <= 0:
                    return None
                connection, kept = self.connection(address, left)
                try:
                    connection.request("POST", ROWS_PATH, wanted.body, self.headers())
                    return address, connection, kept
                except TROUBLE as error:
                    self.failed(wanted, address, error, kept)
        return None

    def receive(
        self, wanted: ShardRequest, sent: Sent, found: dict[str, Bytes], end: float
    ) -> bool:
        """Read one answer into place; False: this address gave none."""
        address, connection, kept = sent
        try:
            connection.sock.settimeout(max(1e-3, end - time.monotonic()))
            with connection.getresponse() as reply:
                body = reply.read()
            if reply.status == 409:  # it is well, but of another version
                wanted.tried.add(address.url)
                return False
            if reply.status != 200:
                raise OSError(f"status {reply.status}: {body[:200]!r}")
            rest, start = unpack(body)[1], 0
            for name, places in wanted.parts:
                width = found[name].shape[1]
                size = len(places) * width
                rows = np.frombuffer(rest[start : start + size], np.uint8)
                found[name][places] = rows.reshape(len(places), width)
                start += size
            return True
        except TROUBLE as error:
            self.failed(wanted, address, error, kept)
            return False

    def failed(self, wanted: ShardRequest, address: Address, error: Exception, kept: bool) -> None:
        """An idle connection that was closed is tried once more on a new one; else it is down."""
        self.drop(address)
        if not (kept and isinstance(error, ConnectionError)):
            wanted.tried.add(address.url)
            self.down(address, error)

    def headers(self) -> dict[str, str]:
        """What goes with a request."""
        kept = {"Content-Type": "application/octet-stream"}
        return {**kept, "X-Api-Key": self.key} if self.key else kept

    def connection(self, address: Address, seconds: float) -> tuple[Any, bool]:
        """This thread's connection to an address, and whether it was used before."""
        held: dict[str, Any] = self.local.__dict__.setdefault("held", {})
        connection = held.get(address.url)
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(seconds)
            return connection, True
        connection = held[address.url] = address.connect(seconds)
        return connection, False

    def drop(self, address: Address) -> None:
        """Close this thread's connection: an answer may still be under way on it."""
        held = self.local.__dict__.setdefault("held", {})
        connection = held.pop(address.url, None)
        if connection is not None:
            connection.close()

    def down(self, address: Address, error: BaseException) -> None:
        """Ask an address no more until it is well."""
        said = "it did not answer in time" if isinstance(error, socket.timeout) else str(error)
        if address.up:
            log.warning("a sparse shard is lost: %s: %s", address.url, said)
        address.up, address.reason = False, said
        with self.lock:
            self.failures += 1

    # The cache

    def from_cache(
        self, ids: Mapping[str, Ids], found: dict[str, Bytes], number: int
    ) -> dict[str, Ids]:
        """Fill in what is known; by table the positions that are missing."""
        if not self.cache_rows:
            return {name: np.arange(len(one)) for name, one in ids.items()}
        with self.lock:
            if self.cached != number:
                for cache in self.caches.values():
                    cache.clear()
                self.cached = number
            missing = {}
            for name, one in ids.items():
                cache = self.caches.setdefault(name, HotRows(self.cache_rows,
                                                             found[name].shape[1]))  # fmt: skip
                missing[name] = cache.get(one, found[name])
            return missing

    def into_cache(
        self,
        ids: Mapping[str, Ids],
        missing: Mapping[str, Ids],
        found: Mapping[str, Bytes],
        lost: Sequence[int],
        number: int,
    ) -> None:
        """Keep what came; never the zeros of a lost shard, nor rows of another version."""
        if not self.cache_rows:
            return
        with self.lock:
            if self.cached != number:
                return
            for name, places in missing.items():
                asked = ids[name][places]
                came = ~np.isin(asked % len(self.shards), list(lost))
                self.caches[name].put(asked[came], found[name][places[came]])

    def cache_count(self, what: str) -> float:
        """`hits` or `misses` of all tables."""
        return float(sum(getattr(cache, what) for cache in list(self.caches.values())))

    # Who is well

    def probe(self) -> None:
        """The thread: look at every address again and again."""
        told = time.monotonic()
        while not self.stopping.wait(PROBE_SECONDS):
            everywhere = time.monotonic() - told > TELL_SECONDS
            self.look(everywhere=everywhere)
            told = time.monotonic() if everywhere else told

    def look(self, *, everywhere: bool) -> None:
        """Ask the addresses that are down (or all) how they are."""
        for place, shard in enumerate(self.shards):
            for address in shard:
                if not address.up or everywhere:
                    self.ask(place, address)

    def ask(self, place: int, address: Address) -> bool:
        """Whether an address answers as the shard that it should be."""
        connection = address.connect(max(0.5, self.seconds))
        try:
            held = {} if self.number is None else {VERSION_HEADER: f"{self.name} {self.number}"}
            connection.request("GET", "/ready", headers=self.headers() | held)
            reply = connection.getresponse()
            said = orjson.loads(reply.read())
            if reply.status != 200:
                raise OSError(f"status {reply.status}")
            if (said.get("shard"), said.get("of")) != (place, len(self.shards)):
                raise OSError(f"this is shard {said.get('shard')} of {said.get('of')}, "
                              f"{place} of {len(self.shards)} is asked")  # fmt: skip
            address.number = int(said["number"])
            address.oldest = int(said.get("oldest", address.number))
        except TROUBLE as error:
            address.up, address.reason = False, str(error) or type(error).__name__
            return False
        finally:
            connection.close()
        if not address.up:
            log.warning("a sparse shard answers again: %s", address.url)
        address.up, address.reason = True, ""
        return True

    def held(self) -> int:
        """The version that all addresses which are up hold at least; -1: a shard has none."""
        self.look(everywhere=True)
        least = [min((one.number for one in shard if one.up), default=-1) for shard in self.shards]
        return min(least)

    def oldest(self) -> int:
        """The oldest version whose rows each shard has somewhere, by what `held` saw."""
        return max(min((one.oldest for one in shard if one.up), default=0) for shard in self.shards)

    def lost_shards(self) -> int:
        """How many shards have no address that is up."""
        return sum(not any(one.up for one in shard) for shard in self.shards)
