"""Rows of tables in a checkpoint: a full file a part, then files of what changed, in safetensors.

    keeper = RowFiles(model, full_every=10)
    keeper.write(folder, previous)         # this process's parts; `previous`: the checkpoint before
    keeper.read(folder)                    # on any number of processes
    export_rows(folder, target)            # weights and id maps, without a model

A checkpoint's folder holds its whole chain: files that did not change are linked from the one
before, so that each can be opened, and removed, alone. Rows are read and written some thousand at
a time; of a whole table only ids and places are in memory. Rows that were evicted are in the files
of changes, and with dynamic tables what admission and eviction go by.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.files import replace_file, sync_file
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import ABSENT, Places
from joymigrate.run.train.tables.optimisers import collections_of
from joymigrate.run.train.tables.remote_rows import ShardedExchange
from joymigrate.run.train.tables.row_storage import MappedTensor, make_mapped, open_mapped
from joymigrate.run.train.tables.table import CHUNK, Table

NAME = re.compile(r"rows-(?P<table>.+)-p(?P<part>\d+)-(?P<number>\d{6})\.safetensors$")
SCHEMA = "joymigrate.table-rows/1"


def file_name(table: str, part: int, number: int) -> str:
    """The name of one file; table names keep to what file names can hold."""
    return f"rows-{table.replace('/', '%2F')}-p{part}-{number:06d}.safetensors"


@dataclass
class Chain:
    """What was written of one part: the version up to which, and the number of the last file."""

    version: int = 0
    number: int = -1
    full: bool = False


class RowFiles:
    """Writes and reads the rows of a model's tables; all of them in every `full_every`-th."""

    def __init__(self, model: nn.Module, full_every: int = 10) -> None:
        self.model, self.full_every = model, full_every
        self.chains: dict[tuple[str, int], Chain] = {}

    def parts(self) -> list[tuple[str, int, Table]]:
        """Table, number of the part, part: those of this process."""
        found = []
        for collection in collections_of(self.model):
            if not collection.fused():
                continue
            exchange = collection.exchange
            if isinstance(exchange, ShardedExchange):
                for number, table in exchange.own.items():
                    found.append((table.name, exchange.of_table[table.name].index(number), table))
            else:
                found += [(name, 0, collection.table(name)) for name in collection.fused()]
        return found

    def write(self, folder: Path, previous: Path | None = None) -> int:
        """Write this process's parts; returns the bytes written. Only between batches."""
        written = 0
        for name, part, table in self.parts():
            check_idle(table)
            chain = self.chains.setdefault((name, part), Chain())
            files = chain_files(previous, name, part) if previous is not None else []
            whole = len(files) != chain.number + 1 or not chain.full
            if whole or len(files) >= self.full_every:
                chain.number, chain.version = -1, 0
            else:
                for path in files:
                    link(path, folder / path.name)
            chain.number += 1
            chain.full = True
            path = folder / file_name(name, part, chain.number)
            written += save(path, table, chain.version, full=chain.number == 0)
            chain.version = table.advance()
        return written

    def read(self, folder: Path) -> None:
        """Take the rows of a checkpoint over, whatever number of processes wrote it."""
        for name, part, table in self.parts():
            take_over(table, merge(folder, name))
            self.chains[name, part] = Chain()


def check_idle(table: Table) -> None:
    """Refuse while a pipeline holds rows: they were counted and not yet updated."""
    if int(table.in_flight.sum()):
        raise JoyError(
            "rows belong to batches that were read ahead and not computed",
            where=f"table '{table.name}'",
            help="TablePipeline(..., pause_every=N) stops reading ahead at every checkpoint",
        )


def link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where links can't be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def save(path: Path, table: Table, since: int, full: bool) -> int:
    """Write all rows, or those of versions after `since`, by chunks; returns the bytes."""
    slots = table.live() if full else table.changed_slots(since)
    if not table.dynamic:
        slots = slots[~table.fresh[slots]]  # the others follow from their ids
    known: dict[str, Tensor] = {
        "ids": torch.from_numpy(table.id_of[slots].copy()),
        "removed": torch.from_numpy(table.removed_ids(since).copy()),
    }
    if table.dynamic:
        live = table.live()
        candidates, seen = table.candidates.items()
        for name, values in (
            ("live", table.id_of[live]), ("count", table.count[live]), ("last", table.last[live]),
            ("last_s", table.last_s[live]), ("candidates", candidates), ("seen", seen),
        ):  # fmt: skip
            known[name] = torch.from_numpy(np.ascontiguousarray(values))
    shape = table.shape
    about = {
        "schema": SCHEMA, "table": table.name, "columns": shape.columns,
        "first_column": shape.first_column, "optimiser": table.optimiser.kind,
        "dynamic": table.dynamic, "batches": table.batches, "updates": table.updates,
        "ignored": table.ignored, "seed": table.options.seed, "low": shape.low, "high": shape.high,
        "rows": None if table.dynamic else shape.first_id + shape.rows, "first_id": shape.first_id,
    }  # fmt: skip
    weights, state = table.form.empty(0)
    wanted = {name: (one.dtype, tuple(one.shape)) for name, one in known.items()}
    wanted["weights"] = weights.dtype, (len(slots), shape.columns)
    wanted["state"] = state.dtype, (len(slots), table.form.state)
    try:
        files = make_mapped(path, wanted, {"about": json.dumps(about)})
        for name, held in known.items():
            files[name].put(slice(None), held)
        at = 0
        for ids, some, its_state in table.row_chunks(slots):
            place = slice(at, at + len(ids))
            files["weights"].put(place, some)
            files["state"].put(place, its_state)
            at += len(ids)
        for one in files.values():
            one.flush()
        sync_file(path)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JoyError(
            f"the rows could not be written: {error}",
            where=str(path),
            help="check space and permissions of that folder",
        ) from error
    table.forget_removed(since)
    return path.stat().st_size


def chain_files(folder: Path, table: str, part: int | None = None) -> list[Path]:
    """The files of a table (of one part) in a checkpoint, oldest first."""
    found = []
    for path in folder.iterdir():
        match = NAME.match(path.name)
        if match is None or match["table"] != table.replace("/", "%2F"):
            continue
        if part is None or int(match["part"]) == part:
            found.append((int(match["part"]), int(match["number"]), path))
    return [path for _, _, path in sorted(found)]


def has_rows(folder: Path) -> bool:
    """Whether a checkpoint has rows of tables."""
    return any(NAME.match(path.name) for path in folder.iterdir())


def tables_in(folder: Path) -> list[str]:
    """Names of the tables of a checkpoint."""
    matches = (NAME.match(path.name) for path in folder.iterdir())
    return sorted({match["table"].replace("%2F", "/") for match in matches if match})


@dataclass
class StoredPart:
    """A part's rows as they lie in its files. `file` and `at` [n]: where each id's row is."""

    about: dict[str, Any]
    ids: Ids  # ascending
    file: npt.NDArray[np.int32]
    at: Places
    files: list[dict[str, MappedTensor]]
    extra: dict[str, Tensor]

    def take(self, which: Places) -> tuple[Tensor, Tensor]:
        """Weights [k, D] and state [k, S] of some rows."""
        file, at = self.file[which], self.at[which]
        found: dict[str, Tensor] = {}
        for name in ("weights", "state"):
            first = self.files[0][name]
            rows = torch.empty(len(which), first.shape[1], dtype=first.kind)
            for number in np.unique(file):
                mine = np.flatnonzero(file == number)
                rows[torch.from_numpy(mine)] = self.files[number][name].rows(at[mine])
            found[name] = rows
        return found["weights"], found["state"]


@dataclass
class SavedRows:
    """Rows of all parts of a table: ids [n] ascending, and what reads weights and state of some."""

    about: dict[str, Any]
    ids: Ids
    extra: dict[str, Tensor]
    parts: list[StoredPart]
    part: npt.NDArray[np.int32] | None = None  # of each id, where parts are rows
    place: Places | None = None  # of each id in its part

    def take(self, which: Places) -> tuple[Tensor, Tensor]:
        """Weights [k, D] and state [k, S] of some rows. State stands by kind, then by column."""
        if self.part is None or self.place is None:
            found = [part.take(which) for part in self.parts]
            blocks = [
                state.view(len(which), -1, part.about["columns"])
                for part, (_, state) in zip(self.parts, found, strict=True)
            ]
            state = torch.cat(blocks, 2).reshape(len(which), -1)
            return torch.cat([weights for weights, _ in found], 1), state
        part, place = self.part[which], self.place[which]
        pieces, order = [], []
        for number in np.unique(part):
            mine = np.flatnonzero(part == number)
            pieces.append(self.parts[number].take(place[mine]))
            order.append(mine)
        if not pieces:
            return self.parts[0].take(which)
        back = torch.from_numpy(np.argsort(np.concatenate(order), kind="stable"))
        weights, states = zip(*pieces, strict=True)
        return torch.cat(weights)[back], torch.cat(states)[back]

    def chunks(self, which: Places | None = None) -> Iterator[tuple[Places, Tensor, Tensor]]:
        """Places, weights and state, some thousand rows at a time."""
        every = np.arange(len(self.ids)) if which is None else which
        for start in range(0, len(every), CHUNK):
            some = every[start : start + CHUNK]
            yield some, *self.take(some)


def read_part(paths: list[Path]) -> StoredPart:
    """A part's chain as rows: the last of each id, without those removed. Reads ids alone."""
    ids: list[Ids] = []
    places: list[Places] = []
    files: list[dict[str, MappedTensor]] = []
    about: dict[str, Any] = {}
    extra: dict[str, Tensor] = {}
    for path in paths:
        metadata, tensors = open_mapped(path)
        about = json.loads(metadata["about"])
        own: Ids = tensors["ids"].rows(slice(None)).numpy()
        gone = np.concatenate((tensors["removed"].rows(slice(None)).numpy(), own))
        for number, old in enumerate(ids):
            keep = ~np.isin(old, gone)
            ids[number], places[number] = old[keep], places[number][keep]
        ids.append(own)
        places.append(np.arange(len(own), dtype=np.int64))
        files.append(tensors)
        extra = {
            name: one.rows(slice(None))
            for name, one in tensors.items()
            if name not in ("ids", "removed", "weights", "state")
        }
    joined = np.concatenate(ids)
    order = np.argsort(joined, kind="stable")
    file = np.repeat(np.arange(len(ids), dtype=np.int32), [len(one) for one in ids])
    return StoredPart(
        about, joined[order], file[order], np.concatenate(places)[order], files, extra
    )


def merge(folder: Path, table: str) -> SavedRows:
    """All parts of a table, opened; rows are read when they are asked for."""
    by_part: dict[int, list[Path]] = {}
    for path in chain_files(folder, table):
        match = NAME.match(path.name)
        assert match is not None
        by_part.setdefault(int(match["part"]), []).append(path)
    if not by_part:
        raise JoyError(
            f"the checkpoint has no rows of table '{table}'",
            where=str(folder),
            help=f"it has {', '.join(tables_in(folder)) or 'no tables'}",
        )
    parts = [read_part(files) for files in by_part.values()]
    parts.sort(key=lambda part: (part.about["first_column"], part.about["first_id"]))
    if len({part.about["first_column"] for part in parts}) > 1:
        return join_columns(parts)
    about = {**parts[0].about, "rows": parts[-1].about["rows"]}
    for name in ("batches", "updates", "ignored"):
        about[name] = max(part.about[name] for part in parts)
    ids = np.concatenate([part.ids for part in parts])
    counts = [len(part.ids) for part in parts]
    order = np.argsort(ids, kind="stable")
    part = np.repeat(np.arange(len(parts), dtype=np.int32), counts)[order]
    place = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])[order]
    extra = {name: torch.cat([one.extra[name] for one in parts]) for name in parts[0].extra}
    return SavedRows(about, ids[order], extra, parts, part, place)


def join_columns(parts: list[StoredPart]) -> SavedRows:
    """Parts of columns side by side."""
    ids = parts[0].ids
    for part in parts[1:]:
        if not np.array_equal(part.ids, ids):
            raise JoyError("the columns of a table have different rows: the checkpoint is damaged")
    total = sum(part.about["columns"] for part in parts)
    about = {**parts[0].about, "columns": total, "first_column": 0}
    return SavedRows(about, ids, parts[0].extra, parts)


def take_over(table: Table, rows: SavedRows) -> None:
    """Rows of a checkpoint into a part: its ids, its columns; some thousand at a time."""
    check_fit(table, rows)
    shape, total = table.shape, rows.about["columns"]
    columns = slice(shape.first_column, shape.first_column + shape.columns)
    table.restart()
    for some, weights, state in rows.chunks(np.flatnonzero(table.owns(rows.ids))):
        if shape.columns != total:
            state = state.view(len(some), -1, total)[:, :, columns].reshape(len(some), -1)
        kept = weights[:, columns].to(table.form.dtype)
        table.load(rows.ids[some], kept, state, replace=False)
    about = rows.about
    table.batches, table.updates = about["batches"], about["updates"]
    table.finished, table.ignored = about["updates"], about["ignored"]
    if table.dynamic:
        bring_back(table, rows.extra)


def check_fit(table: Table, rows: SavedRows) -> None:
    """Refuse rows of another table, optimiser or size."""
    shape, about = table.shape, rows.about
    whole = shape.first_column + shape.columns
    for what, here, there in (
        ("optimiser", table.optimiser.kind, about["optimiser"]),
        ("dynamic", table.dynamic, about["dynamic"]),
        ("columns", max(whole, about["columns"]), about["columns"]),
        ("seed", table.options.seed, about["seed"]),
    ):
        if here != there:
            raise JoyError(
                f"the checkpoint's rows have {what} {there}, and the table has {here}",
                where=f"table '{table.name}'",
                help="use the settings that wrote the checkpoint",
            )


def bring_back(table: Table, extra: Mapping[str, Tensor]) -> None:
    """What admission and eviction go by."""
    live = extra["live"].numpy()
    slots = table.index.find(live)
    held = slots != ABSENT
    for name in ("count", "last", "last_s"):
        getattr(table, name)[slots[held]] = extra[name].numpy()[held]
    candidates = extra["candidates"].numpy()
    mine = table.owns(candidates)
    table.candidates.load(candidates[mine], extra["seen"].numpy()[mine])


def export_rows(folder: Path, target: Path) -> list[Path]:
    """Plain safetensors of a checkpoint's tables, and a list of them in `tables.json`.

    A static table: `weight` [V, D], row = id. A dynamic one: `weight` [n, D] and `ids` [n]
    ascending: row r belongs to ids[r].
    """
    target.mkdir(parents=True, exist_ok=True)
    written, listed = [], {}
    for name in tables_in(folder):
        rows = merge(folder, name)
        path = target / f"{name.replace('/', '%2F')}.safetensors"
        try:
            count = export_table(rows, path)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise JoyError(
                f"the rows could not be written: {error}", where=str(path), help="check its space"
            ) from error
        written.append(path)
        listed[name] = {
            "file": path.name, "rows": count, "columns": rows.about["columns"],
            "dynamic": rows.about["dynamic"],
            # The first value of an id without a row follows from these (docs/how-to/tables.md).
            "seed": rows.about["seed"], "low": rows.about["low"], "high": rows.about["high"],
        }  # fmt: skip
    listing = {"schema": "joymigrate.table-export/1", "tables": listed}
    replace_file(target / "tables.json", json.dumps(listing, indent=1).encode())
    return written


def export_table(rows: SavedRows, path: Path) -> int:
    """Weights, and a dynamic table's ids, by chunks; returns the rows. `OSError` without space."""
    from joymigrate.run.train.formats.first_rows import UniformRows

    about, dynamic = rows.about, rows.about["dynamic"]
    count, columns = len(rows.ids) if dynamic else about["rows"], about["columns"]
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "weight": (rows.parts[0].files[0]["weights"].kind, (count, columns))
    }
    if dynamic:
        wanted["ids"] = torch.int64, (count,)
    files = make_mapped(path, wanted, {})
    if dynamic:
        files["ids"].put(slice(None), torch.from_numpy(rows.ids))
    else:  # rows never seen have their first values
        first = UniformRows(about["table"], columns, about["low"], about["high"], about["seed"])
        for start in range(0, count, CHUNK):
            some = np.arange(start, min(count, start + CHUNK), dtype=np.int64)
            files["weight"].put(some, torch.from_numpy(first.rows(some)))
    for some, weights, _ in rows.chunks():
        files["weight"].put(some if dynamic else rows.ids[some], weights)
    for one in files.values():
        one.flush()
    return count
