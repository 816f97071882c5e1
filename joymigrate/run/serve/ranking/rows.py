"""Rows of embedding tables as bytes: mapped out of a model's file, or in Redis; a hot-row cache.

A table is an array [rows, bytes of a row]: whoever asks knows the type. Memory-mapped pages are
private: what a version writes stays in this process, the file keeps what it holds.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.extras import need
from joymigrate.run.train.formats.tensors import read_header

Ids = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# Element sizes by torch's serialised type numbers (torch/_export/serde/schema.py, ScalarType).
SERIALISED = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 12: 1, 13: 2}
WEIGHTS = "data/weights/model_weights_config.json"
SUFFIXES = ("{}", "{}.weight", "tables.{}", "tables.{}.weight")
LOCAL_HEADER = 30  # bytes of a zip entry's header before its name


def open_tables(path: Path) -> dict[str, Bytes]:
    """Every matrix of a model's file, memory-mapped by name. Raises `JoyError`."""
    if path.is_dir():
        inside = [path / name for name in ("model.pt2", "model.safetensors")]
        found = next((one for one in inside if one.is_file()), None)
        if found is None:
            raise JoyError("no weights in this folder", where=str(path),
                           help="a folder with model.pt2 or model.safetensors")  # fmt: skip
        path = found
    try:
        return of_archive(path) if zipfile.is_zipfile(path) else of_safetensors(path)
    except (OSError, ValueError, KeyError, StopIteration, struct.error) as error:
        raise JoyError(f"cannot read tables here: {type(error).__name__}: {error}",
                       where=str(path), help="a .pt2 of torch.export.save, or safetensors",
                       ) from None  # fmt: skip


def of_archive(path: Path) -> dict[str, Bytes]:
    """The weights of a torch.export archive: its entries are stored as they are."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        config = next(name for name in entries if name.endswith(WEIGHTS))
        folder = config.rpartition("/")[0]
        for name, row in json.loads(archive.read(config))["config"].items():
            meta = row["tensor_meta"]
            sizes = [size["as_int"] for size in meta["sizes"]]
            entry = entries[f"{folder}/{row['path_name']}"]
            width = SERIALISED.get(meta["dtype"], 0) * math.prod(sizes[1:])
            if len(sizes) < 2 or entry.compress_type or entry.file_size != sizes[0] * width:
                continue
            found[name] = map_rows(path, start_of(path, entry), sizes[0], width)
    return found


def start_of(path: Path, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of a zip entry begin."""
    with path.open("rb") as file:
        file.seek(entry.header_offset)
        name, extra = struct.unpack("<HH", file.read(LOCAL_HEADER)[26:30])
    return int(entry.header_offset + LOCAL_HEADER + name + extra)


def of_safetensors(path: Path) -> dict[str, Bytes]:
    """The matrices of a safetensors file."""
    header, base = read_header(path)
    found = {}
    for name, row in header.items():
        if name != "__metadata__" and len(row["shape"]) > 1:
            rows, (first, last) = row["shape"][0], row["data_offsets"]
            found[name] = map_rows(path, base + first, rows, (last - first) // max(1, rows))
    return found


def map_rows(path: Path, start: int, rows: int, width: int) -> Bytes:
    """[rows, width] bytes of a file; writes stay private."""
    return np.memmap(path, np.uint8, "c", start, (rows, width)) if rows * width else np.zeros(
        (rows, width), np.uint8)  # fmt: skip


class HotRows:
    """The hottest rows of one table: the least often asked go first, and old counts fade."""

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity = capacity
        self.slots: dict[int, int] = {}
        self.ids = np.full(capacity, -1, np.int64)
        self.asked = np.zeros(capacity, np.int64)
        self.rows = np.zeros((capacity, width), np.uint8)
        self.hits = self.misses = self.since = 0

    def get(self, ids: Ids, rows: Bytes) -> Ids:
        """Fill `rows` [N, width] with what is known; the positions that are missing."""
        places = np.fromiter((self.slots.get(one, -1) for one in ids.tolist()), np.int64, len(ids))
        there = places >= 0
        rows[there] = self.rows[places[there]]
        self.asked[places[there]] += 1
        known = int(there.sum())
        self.hits, self.misses = self.hits + known, self.misses + len(ids) - known
        self.since += len(ids)
        if self.since > 8 * self.capacity:
            self.asked >>= 1
            self.since = 0
        missing: Ids = np.flatnonzero(~there)
        return missing

    def put(self, ids: Ids, rows: Bytes) -> None:
        """Take rows in, in the place of the coldest."""
        fresh = [at for at, one in enumerate(ids.tolist()) if one not in self.slots]
        fresh = fresh[: self.capacity]
        if not fresh:
            return
        free = np.arange(len(self.slots), min(len(self.slots) + len(fresh), self.capacity))
        lacking = len(fresh) - len(free)
        if lacking:
            held = len(self.slots)
            cold = np.argpartition(self.asked[:held], lacking - 1)[:lacking]
            for one in self.ids[cold].tolist():
                del self.slots[one]
            free = np.concatenate([free, cold])
        self.ids[free], self.rows[free], self.asked[free] = ids[fresh], rows[fresh], 1
        self.slots.update(zip(ids[fresh].tolist(), free.tolist(), strict=True))

    def clear(self) -> None:
        """Forget every row; counts of hits stay."""
        self.slots.clear()
        self.asked[:] = 0


class RedisRows:
    """Rows that training keeps in Redis (`<table>:<id>`, weights before state), with a cache.

    A row that is not there is the model's own. A row is asked again after `seconds`.
    """

    def __init__(self, url: str, tables: Mapping[str, Bytes], rows: int, seconds: float) -> None:
        need("rec", "redis", what="rows in Redis")
        import redis

        self.tables, self.seconds, self.url = tables, seconds, url
        try:
            self.client: Any = redis.Redis.from_url(url, socket_timeout=5)
            self.client.ping()
        except (ValueError, redis.exceptions.RedisError) as error:
            raise JoyError(f"cannot read rows from Redis: {error}",
                           where=url.rpartition("@")[2]) from None  # fmt: skip
        self.caches = {name: HotRows(rows, table.shape[1]) for name, table in tables.items()
                       if rows}  # fmt: skip
        self.cleared = 0.0

    def read(self, name: str, ids: Ids, now: float) -> Bytes:
        """Rows [N, width] by id."""
        table = self.tables[name]
        found = np.empty((len(ids), table.shape[1]), np.uint8)
        cache = self.caches.get(name)
        if now - self.cleared > self.seconds:
            for one in self.caches.values():
                one.clear()
            self.cleared = now
        missing = np.arange(len(ids)) if cache is None else cache.get(ids, found)
        if len(missing):
            prefix = table_name(name)
            keys = [f"{prefix}:{one}".encode() for one in ids[missing].tolist()]
            width = table.shape[1]
            for at, value in zip(missing.tolist(), self.client.mget(keys), strict=True):
                if value is None:
                    found[at] = table[ids[at]]
                elif len(value) < width:
                    raise JoyError(f"row {ids[at]} of '{name}' has {len(value)} bytes in Redis, "
                                   f"the model's has {width}")  # fmt: skip
                else:
                    found[at] = np.frombuffer(value, np.uint8, width)
            if cache is not None:
                cache.put(ids[missing], found[missing])
        return found


def table_name(weight: str) -> str:
    """What training calls the table of a weight."""
    return weight.removesuffix(".weight").removeprefix("tables.")


def weight_of(table: str, state: Mapping[str, Any]) -> str | None:
    """The weight of a published table: by its name, or the only one that ends in it."""
    for pattern in SUFFIXES:
        if pattern.format(table) in state:
            return pattern.format(table)
    ends = [name for name in state if name.endswith((f".{table}", f".{table}.weight"))]
    return ends[0] if len(ends) == 1 else None
