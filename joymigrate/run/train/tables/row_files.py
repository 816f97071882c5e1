"""Rows of tables in a checkpoint: a full file a part, then files of what changed, in safetensors.

    keeper = RowFiles(model, full_every=10)
    keeper.write(folder, previous)         # this process's parts; `previous`: the checkpoint before
    keeper.read(folder)                    # on any number of processes
    export_rows(folder, target)            # weights and id maps, without a model

A checkpoint's folder holds its whole chain: files that did not change are linked from the one
before, so that each can be opened, and removed, alone. Rows that were evicted are in the files of
changes, and with dynamic tables what admission and eviction go by.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.files import replace_file, sync_file
from joymigrate.run.train.tables.hash_index import ABSENT
from joymigrate.run.train.tables.initialise import Ids
from joymigrate.run.train.tables.optimisers import collections_of
from joymigrate.run.train.tables.sharded import ShardedExchange
from joymigrate.run.train.tables.table import Table

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
            merged = merge(folder, name, wanted=table)
            take_over(table, merged)
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
    """Write all rows, or those of versions after `since`; returns the bytes."""
    from safetensors.torch import save_file

    slots = table.live() if full else table.changed_slots(since)
    if not table.dynamic:
        slots = slots[~table.fresh[slots]]  # the others follow from their ids
    chunks = list(table.row_chunks(slots))
    empty = table.form.empty(0)
    tensors: dict[str, Tensor] = {
        "ids": torch.from_numpy(table.id_of[slots].copy()),
        "weights": torch.cat([weights for _, weights, _ in chunks] or [empty[0]]),
        "state": torch.cat([state for _, _, state in chunks] or [empty[1]]),
        "removed": torch.from_numpy(table.removed_ids(since).copy()),
    }
    if table.dynamic:
        live = table.live()
        candidates, seen = table.candidates.items()
        for name, values in (
            ("live", table.id_of[live]), ("count", table.count[live]), ("last", table.last[live]),
            ("last_s", table.last_s[live]), ("candidates", candidates), ("seen", seen),
        ):  # fmt: skip
            tensors[name] = torch.from_numpy(np.ascontiguousarray(values))
    shape = table.shape
    about = {
        "schema": SCHEMA, "table": table.name, "columns": shape.columns,
        "first_column": shape.first_column, "optimiser": table.optimiser.kind,
        "dynamic": table.dynamic, "batches": table.batches, "updates": table.updates,
        "ignored": table.ignored, "seed": table.options.seed, "low": shape.low, "high": shape.high,
        "rows": None if table.dynamic else shape.first_id + shape.rows, "first_id": shape.first_id,
    }  # fmt: skip
    try:
        save_file(tensors, str(path), {"about": json.dumps(about)})
        sync_file(path)
    except Exception as error:  # the library has a class of its own for a full disk
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
class SavedRows:
    """Rows of one or all parts: ids [n] ascending, weights [n, D], state [n, S], and the rest."""

    about: dict[str, Any]
    ids: Ids
    weights: Tensor
    state: Tensor
    extra: dict[str, Tensor]


def read_part(files: list[Path]) -> SavedRows:
    """A part's chain as rows: the last of each id, without those removed."""
    from safetensors import safe_open

    ids: list[Tensor] = []
    weights: list[Tensor] = []
    state: list[Tensor] = []
    about: dict[str, Any] = {}
    extra: dict[str, Tensor] = {}
    for path in files:
        with safe_open(str(path), "pt") as file:
            about = json.loads(file.metadata()["about"])
            new = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        gone = np.concatenate((new.pop("removed").numpy(), new["ids"].numpy()))
        for at, old in enumerate(ids):
            keep = torch.from_numpy(~np.isin(old.numpy(), gone))
            ids[at], weights[at], state[at] = old[keep], weights[at][keep], state[at][keep]
        ids.append(new.pop("ids"))
        weights.append(new.pop("weights"))
        state.append(new.pop("state"))
        extra = new
    joined = torch.cat(ids)
    order = torch.argsort(joined)
    return SavedRows(
        about, joined[order].numpy(), torch.cat(weights)[order], torch.cat(state)[order], extra
    )


def merge(folder: Path, table: str, wanted: Table | None = None) -> SavedRows:
    """All parts of a table; with `wanted` the columns of that part alone."""
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
    order = np.argsort(ids, kind="stable")
    at = torch.from_numpy(order)
    extra = {name: torch.cat([part.extra[name] for part in parts]) for name in parts[0].extra}
    weights = torch.cat([part.weights for part in parts])[at]
    return SavedRows(
        about, ids[order], weights, torch.cat([part.state for part in parts])[at], extra
    )


def join_columns(parts: list[SavedRows]) -> SavedRows:
    """Parts of columns side by side. State stands by kind: all of the first, then the second."""
    ids = parts[0].ids
    for part in parts[1:]:
        if not np.array_equal(part.ids, ids):
            raise JoyError("the columns of a table have different rows: the checkpoint is damaged")
    total = sum(part.about["columns"] for part in parts)
    blocks = [part.state.view(len(ids), -1, part.about["columns"]) for part in parts]
    about = {**parts[0].about, "columns": total, "first_column": 0}
    state = torch.cat(blocks, 2).reshape(len(ids), -1)
    return SavedRows(
        about, ids, torch.cat([part.weights for part in parts], 1), state, parts[0].extra
    )


def take_over(table: Table, rows: SavedRows) -> None:
    """Rows of a checkpoint into a part: its ids, its columns."""
    check_fit(table, rows)
    mine = table.owns(rows.ids)
    at = torch.from_numpy(np.flatnonzero(mine))
    weights, state = rows.weights[at], rows.state[at]
    shape, total = table.shape, rows.about["columns"]
    columns = slice(shape.first_column, shape.first_column + shape.columns)
    if shape.columns != total:
        state = state.view(len(at), -1, total)[:, :, columns].reshape(len(at), -1)
    table.restart()
    table.load(rows.ids[mine], weights[:, columns].to(table.form.dtype), state)
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
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    written, listed = [], {}
    for name in tables_in(folder):
        rows = merge(folder, name)
        tensors = {"weight": rows.weights.contiguous()}
        if rows.about["dynamic"]:
            tensors["ids"] = torch.from_numpy(rows.ids)
        else:
            tensors["weight"] = all_rows(rows)
        path = target / f"{name.replace('/', '%2F')}.safetensors"
        save_file(tensors, str(path))
        written.append(path)
        listed[name] = {
            "file": path.name, "rows": len(tensors["weight"]), "columns": rows.about["columns"],
            "dynamic": rows.about["dynamic"],
            # The first value of an id without a row follows from these (docs/tables.md).
            "seed": rows.about["seed"], "low": rows.about["low"], "high": rows.about["high"],
        }  # fmt: skip
    listing = {"schema": "joymigrate.table-export/1", "tables": listed}
    replace_file(target / "tables.json", json.dumps(listing, indent=1).encode())
    return written


def all_rows(rows: SavedRows) -> Tensor:
    """A static table's weight: rows never seen have their first values."""
    from joymigrate.run.train.tables.initialise import UniformRows

    about = rows.about
    initial = UniformRows(
        about["table"], about["columns"], about["low"], about["high"], about["seed"]
    )
    every = np.arange(about["rows"], dtype=np.int64)
    weight = torch.from_numpy(initial.rows(every)).to(rows.weights.dtype)
    weight[torch.from_numpy(rows.ids)] = rows.weights
    return weight
