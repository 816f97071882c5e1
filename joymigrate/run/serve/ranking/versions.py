"""Fresh weights: published versions applied between batches, whole or not at all, and taken back.

The published format is docs/how-to/continuous.md; `joymigrate.run.train.formats.versions` reads it.
A version is read and compared with its hashes first, then every tensor's shape is checked, then all
of it is written while no batch runs. What it replaced is kept, so that version N-1 is one step
away. A process that is killed starts again from the published files: nothing of it is on disk but
the version that an operator pinned.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joymigrate import files
from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.packages import cache_folder
from joymigrate.run.serve.ranking.tensors import as_arrays
from joymigrate.run.serve.ranking.trial import TRIED, draw_if_possible
from joymigrate.run.serve.ranking.version_follower import VersionFollower
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.train.formats import versions

if TYPE_CHECKING:
    import torch

SHARDS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Write:
    """New values of one tensor: of the rows `ids`, or of all of it (`ids` None)."""

    name: str
    ids: torch.Tensor | None
    values: torch.Tensor


class Versions(VersionFollower):
    """Follows a place where versions are published, for one engine."""

    def __init__(
        self, engine: RankingEngine, place: str, *, poll_seconds: float = 0.5, hold: bool = False
    ) -> None:
        super().__init__(place, poll_seconds=poll_seconds)
        self.engine, self.hold = engine, hold
        self.number = 0
        self.undo: tuple[int, str, list[Write], float] | None = None
        self.event_time = 0.0  # of the newest sample behind the weights
        self.applied = self.refused = self.rolled_back = 0
        self.lock = threading.Lock()
        name = hashlib.sha256(f"{place} {engine.program.digest}".encode()).hexdigest()[:32]
        self.pin_file = cache_folder() / "pins" / f"{name}.json"
        self.pinned = self.read_pin()
        self.refused_numbers: set[int] = set()

    @property
    def held(self) -> int:
        """The version of the engine's weights."""
        return self.number

    def open(self) -> None:
        """From the newest snapshot to the wanted version, where one is published."""
        if self.store.latest() is None:
            return
        with self.lock:
            wanted = self.wait_for_shards()
            for link in versions.chain(self.store, wanted):
                self.take(link)

    def follow(self) -> None:
        """Apply the versions that came since, in order; a gap starts from a snapshot again."""
        with self.lock:
            newest = self.store.latest()
            if (
                newest is None
                or self.hold
                or self.pinned is not None
                or newest["version"] <= self.number
            ):
                return
            wanted = self.reachable(int(newest["version"]))
            if wanted <= self.number or wanted in self.refused_numbers:
                return
            try:
                links = self.links_since(wanted)
            except JoyError:  # it is published no more: shards that wait for this part go on
                if split := self.engine.program.split:
                    split.shards.number = None
                raise
            for link in links:
                self.take(link)

    def wait_for_shards(self) -> int:
        """At the start: the version that this part opens with, once the shards hold it."""
        newest = self.store.latest()
        wanted = self.pinned or (int(newest["version"]) if newest is not None else 0)
        end = time.monotonic() + SHARDS_SECONDS
        while (found := self.reachable(wanted)) < (self.pinned or 1):
            if time.monotonic() > end:
                raise JoyError(f"the sparse shards do not hold version {wanted}",
                               where=self.store.where,
                               help="start them with the same --versions")  # fmt: skip
            time.sleep(self.poll_seconds)
        self.check_shards(found)
        return found

    def reachable(self, number: int) -> int:
        """The newest version up to `number` that sparse shards, where there are some, have."""
        split = self.engine.program.split
        return number if split is None else min(number, split.shards.held())

    def check_shards(self, number: int) -> None:
        """Raise `JoyError` where sparse shards have no rows of an earlier version any more."""
        split = self.engine.program.split
        if split is None:
            return
        newest, oldest = split.shards.held(), split.shards.oldest()
        if not oldest <= number <= newest:
            raise JoyError(f"the sparse shards have no rows of version {number}, only of "
                           f"{oldest} to {newest}", where=self.store.where)  # fmt: skip

    def take(self, link: Mapping[str, Any]) -> None:
        """Read, check, apply one form. Raises `JoyError`; then nothing has changed."""
        number = int(link["version"])
        try:
            writes = self.read(link)
            self.apply(number, str(link["identity"]), writes, float(link.get("newest_event") or 0))
        except JoyError:
            self.refused += 1
            self.refused_numbers.add(number)
            raise

    def read(self, link: Mapping[str, Any]) -> list[Write]:
        """All writes of a version, every one of them checked against the model."""

        state = self.engine.program.state
        writes: list[Write] = []
        away = self.engine.program.split
        elsewhere = away.tables if away is not None else frozenset()
        names = {**dict.fromkeys(state), **dict.fromkeys(elsewhere)}
        for name, values in versions.unpack(self.store.file(dict(link), versions.DENSE)).items():
            if name in elsewhere:
                continue
            if name not in state:
                raise self.misfit(link, f"the model has no weight '{name}'")
            writes.append(Write(name, None, values))
        writes += [Write(*rows) for rows in self.rows_of(link, names, elsewhere)]
        for write in writes:
            self.check(link, write, state[write.name])
        return writes

    def check(self, link: Mapping[str, Any], write: Write, held: torch.Tensor) -> None:
        """Shape, rows and finite values of one write."""
        shape = tuple(write.values.shape)
        if write.ids is not None:
            self.check_rows(link, write.name, write.ids, write.values, held.shape[0])
        else:
            self.check_finite(link, write.name, write.values)
        wanted = tuple(held.shape) if write.ids is None else (len(write.ids), *held.shape[1:])
        if shape != wanted:
            raise self.misfit(link, f"'{write.name}' is {list(held.shape)}, {list(shape)} came")

    def apply(self, number: int, identity: str, writes: list[Write], event: float) -> None:
        """Write everything while no batch runs; taken back when scores are not finite then.

        Only this thread writes weights: what is replaced is copied, and what comes is brought to
        the device, while batches still run.
        """
        state = self.engine.program.state
        writes = [there(one, state[one.name]) for one in writes]
        before = [Write(one.name, one.ids, kept_values(state[one.name], one.ids)) for one in writes]
        with self.engine.gate.change():
            put(state, writes)
            self.ask_rows_of(number)
            if not self.sane():
                put(state, before[::-1])
                self.ask_rows_of(self.number)
                raise JoyError(f"version {number} gives scores that are not finite",
                               where=self.store.where)  # fmt: skip
            self.undo = (self.number, self.identity, before[::-1], self.event_time)
            self.number, self.identity, self.event_time = number, identity, event
            self.engine.version = str(number)
            self.engine.loaded_at = time.time()
            self.applied += 1

    def ask_rows_of(self, number: int) -> None:
        """Sparse shards are asked for rows of this version from now on."""
        split = self.engine.program.split
        if split is not None:
            split.number = split.shards.number = number

    def sane(self) -> bool:
        """Whether a random request of several candidates gets finite scores.

        Batches wait meanwhile, so it is one, by compiled code where that answers.
        """
        import numpy as np

        program = self.engine.program
        for size in (TRIED[-1], TRIED[1], TRIED[0]):
            request = draw_if_possible(program.signature, *size, 0)
            if request is None:
                continue
            for run in (program.compiled, None):
                with contextlib.suppress(RuntimeError, IndexError, HttpRefusal):
                    found = as_arrays(program.run(request.arrays, run))
                    return all(bool(np.isfinite(array).all()) for array in found)
        return True

    def back(self) -> int:
        """Return to the version before, and stay there until `resume`. Raises `JoyError`."""
        with self.lock:
            if self.undo is None or self.undo[0] == 0:
                return self.reopen(self.number - 1)
            number = self.undo[0]
            self.put_back(*self.undo)
            self.pin(number)
            return number

    def put_back(self, number: int, identity: str, writes: list[Write], event: float) -> None:
        """Write what the newest version replaced."""
        with self.engine.gate.change():
            put(self.engine.program.state, writes)
            self.ask_rows_of(number)
            self.number, self.identity, self.event_time = number, identity, event
            self.engine.version = str(number)
            self.undo = None
        self.rolled_back += 1

    def reopen(self, number: int) -> int:
        """Go to an earlier version from what is published: nothing is kept of it here."""
        if number < 1:
            raise JoyError(f"there is no version before {self.number}", where=self.store.where)
        self.check_shards(number)
        for link in versions.chain(self.store, number):
            self.take(link)
        self.rolled_back += 1
        self.pin(number)
        return number

    def go(self, number: int) -> None:
        """Hold exactly this version. Raises `JoyError`; then the old one stays."""
        with self.lock:
            if number != self.number:
                undo = self.undo
                if undo is not None and undo[0] == number and number:
                    self.put_back(*undo)
                else:
                    self.check_shards(number)
                    for link in self.links_since(number):
                        self.take(link)
            self.pin(number)

    @property
    def newest(self) -> int:
        """The newest published version that this part can go to; 0: none."""
        found = self.store.latest()
        return max(0, self.reachable(int(found["version"]))) if found is not None else 0

    def resume(self) -> None:
        """Follow new versions again."""
        with self.lock:
            self.pin(None)
            self.refused_numbers.clear()

    def pin(self, number: int | None) -> None:
        """Remember an operator's choice beyond the end of this process."""
        self.pinned = number
        if number is None:
            self.pin_file.unlink(missing_ok=True)
            return
        self.pin_file.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps({"version": number}).encode()
        files.replace_file(self.pin_file, data, durable=True)

    def read_pin(self) -> int | None:
        """The version that an operator went back to, if any."""
        try:
            return int(json.loads(self.pin_file.read_text())["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def freshness_seconds(self) -> float:
        """Age of the newest sample behind the weights; NaN where no version says."""
        return time.time() - self.event_time if self.event_time else math.nan


def there(one: Write, held: torch.Tensor) -> Write:
    """A write with its values as the held tensor has them: on its device, of its type."""
    ids = None if one.ids is None else one.ids.to(held.device)
    return Write(one.name, ids, one.values.to(held.device, held.dtype))


def kept_values(tensor: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """A copy of what a write replaces."""
    return tensor.detach().clone() if ids is None else tensor[ids.to(tensor.device)].clone()


def put(state: Mapping[str, torch.Tensor], writes: list[Write]) -> None:
    """Write values in place: whatever shares the memory sees them, too."""
    import torch

    with torch.no_grad():
        for one in writes:
            held = state[one.name]
            values = one.values.to(held.device, held.dtype)
            if one.ids is None:
                held.copy_(values)
            else:
                held.index_copy_(0, one.ids.to(held.device), values)
