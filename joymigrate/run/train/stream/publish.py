"""A model's changes as published versions, and a model from the newest version.

What the trainer needs to go on (optimiser state, the stream's position) is part of the version:
there is no other checkpoint that could disagree with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from joymigrate.errors import JoyError
from joymigrate.run.train.formats import versions
from joymigrate.run.train.samples.lookup import Recommender
from joymigrate.run.train.tables.table import Table

STATE = "state.rows"  # a table's optimiser state, row by row


class Publisher:
    """Writes versions of one model. Not thread-safe: called between two steps."""

    def __init__(
        self,
        store: versions.VersionStore,
        model: Recommender,
        optimiser: Any,
        head: Mapping[str, Any],
        snapshot_every: int,
        keep: int,
    ) -> None:
        self.store, self.model, self.optimiser = store, model, optimiser
        self.head, self.snapshot_every, self.keep = dict(head), snapshot_every, keep
        self.tables = model.rows.tables()
        self.version, self.identity = 0, ""
        self.since = dict.fromkeys(self.tables, 0)  # what is published of every table

    # -- out ----------------------------------------------------------------------------------

    def publish(self, progress: Mapping[str, Any]) -> versions.Manifest:
        """The next version: rows changed since the last one that was published, dense weights."""
        first = self.version == 0
        closed = {name: table.advance() for name, table in self.tables.items()}
        files: dict[str, bytes] = {versions.DENSE: versions.pack(self.model.dense.state_dict())}
        training = optimiser_tensors(self.optimiser)
        entries = {}
        for name, table in self.tables.items():
            ids, rows, state = find_changed(table, self.since[name])
            removed = table.removed_ids(self.since[name])
            file = f"table.{name}.safetensors"
            content = {"ids": ids, "rows": rows, "removed": torch.from_numpy(removed)}
            files[file] = versions.pack(content)
            training[f"{name}/{STATE}"] = state
            entries[name] = entry_of(table, file, len(ids), len(removed))
        files[versions.TRAINING] = versions.pack(training)
        listed = versions.describe(files)
        previous = self.identity
        manifest = {
            **self.head,
            **progress,
            "schema": versions.SCHEMA,
            "version": self.version + 1,
            "form": "snapshot" if first else "delta",
            "previous": None if first else previous,
            "identity": versions.identity(previous, listed),
            "time": time.time(),
            "files": listed,
            "tables": entries,
            "updates": {name: table.updates for name, table in self.tables.items()},
        }
        self.store.publish(manifest, files)
        self.version, self.identity = manifest["version"], manifest["identity"]
        self.since = closed
        for name, table in self.tables.items():
            table.forget_removed(closed[name])
        if not first and self.version % self.snapshot_every == 0:
            versions.compact(self.store, self.version)
            versions.prune(self.store, self.keep)
        return manifest

    # -- in -----------------------------------------------------------------------------------

    def restore(self) -> versions.Manifest | None:
        """Take over the newest version; None where there is none yet."""
        if self.store.latest() is None:
            return None
        links = versions.chain(self.store)
        last = links[-1]
        for key in ("model", "features", "task"):
            if last.get(key) != self.head.get(key):
                raise JoyError(
                    f"the versions published there have another '{key}'",
                    where=self.store.where,
                    help="publish to another place, or bring the job back to what it was",
                )
        content = versions.replay(self.store, links)
        self.model.dense.load_state_dict(content["dense"])
        load_optimiser(self.optimiser, content["training"])
        for name, table in self.tables.items():
            rows = content["tables"][name]
            table.load(rows["ids"].numpy(), rows["rows"].to(table.form.dtype), rows[STATE])
            table.updates = last["updates"][name]
            self.since[name] = table.advance()
            table.forget_removed(self.since[name])
        self.version, self.identity = last["version"], last["identity"]
        return last


def find_changed(table: Table, since: int) -> tuple[Any, Any, Any]:
    """Ids, rows and optimiser state of rows changed after a version."""
    parts = list(table.row_chunks(table.changed_slots(since)))
    if not parts:
        empty = table.form.empty(0)
        return torch.empty(0, dtype=torch.int64), empty[0], empty[1]
    ids = np.concatenate([ids for ids, _, _ in parts])
    rows = torch.cat([rows for _, rows, _ in parts])
    return torch.from_numpy(ids), rows, torch.cat([state for _, _, state in parts])


def entry_of(table: Table, file: str, ids: int, removed: int) -> dict[str, Any]:
    """What a manifest says about a table."""
    shape, initial = table.shape, table.initial
    return {
        "file": file,
        "dim": shape.columns,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "ids": ids,
        "removed": removed,
        "rows": None if table.dynamic else shape.rows,
        "initial": {
            **{"name": "uniform", "low": initial.low, "high": initial.high},
            **{"seed": initial.seed, "table": initial.table},
        },
    }


def optimiser_tensors(optimiser: Any) -> dict[str, Any]:
    """The state of the dense part's optimiser: `dense/NUMBER/KEY`."""
    found = {}
    for number, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            if value is not None:
                found[f"dense/{number}/{key}"] = torch.as_tensor(value)
    return found


def load_optimiser(optimiser: Any, tensors: Mapping[str, Any]) -> None:
    """The state of `optimiser_tensors`."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        _, number, key = name.split("/")
        state.setdefault(int(number), {})[key] = value
    if state:
        whole = optimiser.state_dict()
        optimiser.load_state_dict({**whole, "state": state})
