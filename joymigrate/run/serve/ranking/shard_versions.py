"""A sparse shard follows published versions: its rows of each, applied as one change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking.shard import KEPT_VERSIONS, ReplacedRows, Shard
from joymigrate.run.serve.ranking.version_follower import VersionFollower


class ShardVersions(VersionFollower):
    """Follows a place where versions are published, for one shard: rows alone."""

    def __init__(self, shard: Shard, place: str, *, poll_seconds: float = 0.2) -> None:
        super().__init__(place, poll_seconds=poll_seconds)
        self.shard = shard
        self.applied_at = time.time()

    @property
    def held(self) -> int:
        """The version of the shard's rows."""
        return self.shard.number

    def open(self) -> None:
        """What is published, with the versions before it: a dense part may have stayed there."""
        newest = self.store.latest()
        if newest is None:
            return
        last = int(newest["version"])
        for number in range(max(1, last - KEPT_VERSIONS), last):
            with contextlib.suppress(JoyError):  # it is published no more
                self.take(number)
        self.take(last)

    def follow(self) -> None:
        """Apply the versions that came since, in order; a gap starts from a snapshot again."""
        newest = self.store.latest()
        if newest is not None and newest["version"] > self.held:
            self.take(int(newest["version"]))

    def take(self, number: int) -> None:
        """Apply what leads to a version, as far as no dense part would lose its rows by it."""
        if self.shard.must_wait(self.held + 1, time.monotonic()):
            return
        for link in self.links_since(number):
            if self.shard.must_wait(int(link["version"]), time.monotonic()):
                return
            self.shard.put(int(link["version"]), self.read(link))
            self.identity = str(link["identity"])
            self.applied_at = time.time()

    def links_since(self, number: int | None) -> list[dict[str, Any]]:
        """Version by version, where they are published yet: from a snapshot on, there would be no
        rows of those before it."""
        links, identity = [], self.identity
        try:
            for at in range(self.held + 1, (number or 0) + 1):
                link = self.store.manifest(at, "delta")
                if link["previous"] != identity:
                    return super().links_since(number)
                links.append(link)
                identity = link["identity"]
        except JoyError:
            return super().links_since(number)
        return links or super().links_since(number)

    def read(self, link: Mapping[str, Any]) -> list[ReplacedRows]:
        """All rows of a version, every one checked against the tables."""
        return [self.checked(link, *rows) for rows in self.rows_of(link, self.shard.tables)]

    def checked(self, link: Mapping[str, Any], name: str, ids: Any, rows: Any) -> ReplacedRows:
        """Rows as bytes, ascending by id."""
        import torch

        table = self.shard.tables[name]
        self.check_rows(link, name, ids, rows, len(table))
        order = torch.argsort(ids)
        ids, rows = ids[order].numpy(), rows[order].contiguous()
        width = rows[:1].numel() * rows.element_size() if len(rows) else table.shape[1]
        if width != table.shape[1]:
            raise self.misfit(link, f"a row of '{name}' has {table.shape[1]} bytes, {width} came")
        flat = rows.reshape(len(ids), -1).view(torch.uint8).numpy()
        return ReplacedRows(name, ids.astype(np.int64), flat.reshape(len(ids), table.shape[1]))
