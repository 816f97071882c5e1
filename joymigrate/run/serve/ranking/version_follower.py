"""The thread that follows published versions: whatever applies them says only how."""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Iterator, Mapping
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking.rows import weight_of
from joymigrate.run.train.formats import versions

log = logging.getLogger("joymigrate.serve")


class VersionFollower:
    """Asks a place for new versions every `poll_seconds`, in a thread of its own.

    A subclass gives `open` (what is published at the start), `follow` (what came since) and
    `held` (the number of the version that it holds, for the log).
    """

    def __init__(self, place: str, *, poll_seconds: float) -> None:
        self.store = versions.open_versions(place)
        self.poll_seconds = poll_seconds
        self.identity, self.reason = "", ""
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work, name="versions", daemon=True)

    @property
    def held(self) -> int:
        """The number of the version that is held; 0: none."""
        raise NotImplementedError

    def open(self) -> None:
        """Apply what is published when this starts. Raises `JoyError` where it does not fit."""
        self.follow()

    def follow(self) -> None:
        """Apply the versions that came since. Raises `JoyError` where one does not fit."""
        raise NotImplementedError

    def start(self) -> None:
        """Apply what is published, then follow. Raises `JoyError` when the first does not fit."""
        self.open()
        self.thread.start()

    def stop(self) -> None:
        """Follow no more."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=10)

    def work(self) -> None:
        """The thread: an error is logged once, the held version answers on."""
        while not self.stopping.wait(self.poll_seconds):
            try:
                self.follow()
                self.reason = ""
            except Exception as error:
                if str(error) != self.reason:
                    log.warning("version %d stays: %s", self.held, error)
                self.reason = str(error)

    def links_since(self, number: int | None) -> list[dict[str, Any]]:
        """The forms from the held version to `number` (None: the newest), in order.

        A chain that the held version is no part of starts from a snapshot again. Raises `JoyError`
        where that version cannot be opened.
        """
        links = versions.chain(self.store, number)
        known = next((at for at, link in enumerate(links) if link["identity"] == self.identity), -1)
        return links[known + 1 :]

    def rows_of(
        self, link: Mapping[str, Any], names: Mapping[str, Any], elsewhere: Container[str] = ()
    ) -> Iterator[tuple[str, Any, Any]]:
        """The rows of a version, by the weight of `names` that they belong to: ids, and values;
        removed rows get their first values again. Raises `JoyError`. What another process follows
        is `elsewhere`."""
        for table, entry in link["tables"].items():
            name = weight_of(table, names)
            if name is None:
                raise self.misfit(link, f"there is no table '{table}'")
            if name in elsewhere:
                continue
            content = versions.unpack(self.store.file(dict(link), entry["file"]))
            yield name, content["ids"], content["rows"]
            removed = content.get("removed")
            if removed is not None and len(removed):
                yield name, removed, versions.initial_rows(entry["initial"], removed, entry["dim"])

    def misfit(self, link: Mapping[str, Any], what: str) -> JoyError:
        """A version that does not fit what is held."""
        return JoyError(f"version {link['version']} does not fit: {what}", where=self.store.where)

    def check_rows(
        self, link: Mapping[str, Any], name: str, ids: Any, rows: Any, count: int
    ) -> None:
        """Ids of rows are whole numbers below `count` in one dimension, each one once, with as many
        rows of finite values. Raises `JoyError`."""
        import torch

        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise self.misfit(link, f"the ids of '{name}' are {ids.dtype} {list(ids.shape)}")
        if len(torch.unique(ids)) != len(ids):  # which of both rows would stay is chance on a GPU
            raise self.misfit(link, f"an id of '{name}' is there twice")
        if len(rows) != len(ids):
            raise self.misfit(link, f"'{name}' has {len(ids)} ids and {len(rows)} rows")
        low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
        if low < 0 or high >= count:
            bad = high if low >= 0 else low
            raise self.misfit(link, f"row {bad} of '{name}' is not there, it has {count}")
        self.check_finite(link, name, rows)

    def check_finite(self, link: Mapping[str, Any], name: str, values: Any) -> None:
        """Raise `JoyError` for values that are no finite numbers."""
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise self.misfit(link, f"'{name}' has values that are not finite")
