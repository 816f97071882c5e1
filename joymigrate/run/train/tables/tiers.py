"""The rows that a device holds: all of a table, or a cache over a slower store.

Both give a batch its lines: places in one matrix of weights and one of state. Lines are pinned
until the batch that reads and updates them is released, so that a later batch, prepared
meanwhile by another thread, never moves a row whose gradient is still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.lock import TableLock
from joymigrate.run.train.tables.stores.store import RowFormat, RowStore

FREE = -1
Fresh = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.float32]
RowsOf = Callable[[], tuple[Tensor, Tensor]]
FirstRows = Callable[[Ids], tuple[Tensor, Tensor]]  # weights and state of rows never written


class CacheFull(JoyError):
    """The lines that are pinned leave too few for a batch."""

    def __init__(self, table: str, rows: int, needed: int, pinned: int) -> None:
        super().__init__(
            f"a batch needs {needed} rows that are not in the cache, and of its {rows} lines "
            f"{pinned} hold rows of this batch or of batches in flight",
            where=f"table '{table}'",
            help="raise cache_rows, or make the batch smaller",
        )


@dataclass
class CacheFigures:
    """What a cache did since it was made; a hit is a distinct row of a batch that was there."""

    hits: int = 0
    misses: int = 0
    written_back: int = 0

    @property
    def rate(self) -> float:
        """Share of hits, 0 before the first row."""
        return self.hits / max(1, self.hits + self.misses)


class ResidentRows:
    """All rows on one device: line = slot."""

    def __init__(self, form: RowFormat, device: torch.device, first: FirstRows) -> None:
        self.form, self.device, self.first = form, device, first
        self.weights, self.state = form.empty(0, device)
        self.lock = TableLock()  # growing replaces the matrices
        self.figures = CacheFigures()

    def reserve(self, slots: int) -> None:
        """Grow to `slots` rows."""
        more = slots - len(self.weights)
        if more <= 0:
            return
        weights, state = self.form.empty(more, self.device)
        with self.lock:
            self.weights = torch.cat((self.weights, weights)) if len(self.weights) else weights
            self.state = torch.cat((self.state, state)) if len(self.state) else state

    def lines(self, ids: Ids, slots: Places, counts: Counts, fresh: Fresh) -> Places:
        """The slots themselves; rows never written get their first values."""
        self.figures.hits += len(slots)
        if fresh.any():
            self.load(ids[fresh], slots[fresh], *self.first(ids[fresh]))
        return slots

    def release(self, lines: Places, changed: bool) -> None:
        """Nothing is ever moved."""

    def drop(self, slots: Places) -> None:
        """Slots are used again; nothing to do."""

    def remove(self, ids: Ids, slots: Places) -> None:
        """Nothing lies anywhere else."""

    def read(self, ids: Ids, slots: Places, fresh: Fresh) -> tuple[Tensor, Tensor]:
        """Copies of rows on the CPU."""
        with self.lock:
            at = torch.from_numpy(slots).to(self.device)
            weights, state = self.weights[at].cpu(), self.state[at].cpu()
        return with_first(weights, state, ids, fresh, self.first)

    def load(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Put rows in, given on the CPU."""
        at = torch.from_numpy(slots).to(self.device)
        with self.lock:
            self.weights.index_copy_(0, at, weights.to(self.device))
            if self.form.state:
                self.state.index_copy_(0, at, state.to(self.device))

    def flush(self) -> None:
        """Nothing lies anywhere else."""

    def close(self) -> None:
        """Let go of the memory."""
        self.weights, self.state = self.form.empty(0)


class RowCache:
    """A fixed number of lines before a store: least frequently used rows leave, counts grow old.

    A row's count is that of the table, seen before it was in the cache too, so that a row seen once
    never drives out one that is seen often: it is itself the next to leave. With `below` a cache in
    host memory can stand before a slow store (`CacheStore`).
    """

    def __init__(
        self, table: str, form: RowFormat, rows: int, device: torch.device, store: RowStore,
        first: FirstRows,
    ) -> None:  # fmt: skip
        self.table, self.form, self.device = table, form, device
        self.store, self.first = store, first
        self.weights, self.state = form.empty(rows, device)
        self.slot_of = np.full(rows, FREE, dtype=np.int64)
        self.id_of = np.zeros(rows, dtype=np.int64)
        self.pins = np.zeros(rows, dtype=np.int32)
        self.score = np.zeros(rows, dtype=np.float32)
        self.dirty = np.zeros(rows, dtype=bool)
        # Half the bytes: what a hit costs is mostly the look at this.
        self.where = np.full(0, FREE, dtype=np.int32 if rows < 2**31 else np.int64)
        self.lock = TableLock()  # pins and dirt, which two threads change
        self.figures = CacheFigures()

    def reserve(self, slots: int) -> None:
        """Know slots below `slots`."""
        more = slots - len(self.where)
        if more > 0:
            self.store.reserve(slots)
            with self.lock:
                self.where = np.concatenate((self.where, np.full(more, FREE, self.where.dtype)))

    def lines_at(self, slots: Places) -> Places:
        """The line of each slot, `FREE` where it is not here."""
        return self.where[slots].astype(np.int64)

    def lines(self, ids: Ids, slots: Places, counts: Counts, fresh: Fresh) -> Places:
        """Bring the rows of distinct slots in, and pin their lines. Raises `CacheFull`."""
        lines = self.lines_at(slots)
        missing = np.flatnonzero(lines == FREE)
        with self.lock:
            self.pins[lines[lines != FREE]] += 1  # before victims are chosen
        try:
            if len(missing):
                new = ids[missing], slots[missing], fresh[missing]
                lines[missing] = self._bring(*new[:2], lambda: self._read_below(*new), new[2])
        except BaseException:
            with self.lock:
                self.pins[lines[lines != FREE]] -= 1
            raise
        self.score[lines] = counts
        self.figures.hits += len(slots) - len(missing)
        self.figures.misses += len(missing)
        return lines

    def _bring(self, ids: Ids, slots: Places, rows: RowsOf, dirty: Fresh) -> Places:
        """Give rows lines, pinned; `rows` is called when their old rows are written back."""
        victims = self._victims(len(slots))
        self._write_back(victims)
        weights, state = rows()
        self._forget(victims)
        at = torch.from_numpy(victims).to(self.device)
        self.weights.index_copy_(0, at, weights.to(self.device))
        if self.form.state:
            self.state.index_copy_(0, at, state.to(self.device))
        with self.lock:
            self.slot_of[victims], self.id_of[victims] = slots, ids
            self.where[slots] = victims
            self.pins[victims] += 1
            self.dirty[victims] = dirty  # a first value is nowhere else
        return victims

    def put(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Keep rows that come from above: here, and changed. As many as there are lines at most."""
        lines = self.lines_at(slots)
        held = lines != FREE
        here = torch.from_numpy(np.flatnonzero(held))
        at = torch.from_numpy(lines[held]).to(self.device)
        self.weights[at], self.state[at] = weights[here], state[here]
        with self.lock:
            self.dirty[lines[held]] = True
            self.pins[lines[held]] += 1
        if not held.all():
            rest = torch.from_numpy(np.flatnonzero(~held))
            new = ~np.zeros(len(rest), dtype=bool)
            values = weights[rest], state[rest]
            lines[~held] = self._bring(ids[~held], slots[~held], lambda: values, new)
        self.score[lines] += 1
        self.release(lines, changed=True)

    def _victims(self, count: int) -> Places:
        with self.lock:
            order = np.where(self.slot_of == FREE, np.float32(-1), self.score)
            order[self.pins > 0] = np.inf
        pinned = int(np.isinf(order).sum())
        if len(order) - pinned < count:
            raise CacheFull(self.table, len(order), count, pinned)
        if count == len(order):
            return np.arange(count)
        return np.sort(np.argpartition(order, count - 1)[:count])

    def _write_back(self, lines: Places) -> None:
        lines = lines[self.dirty[lines] & (self.slot_of[lines] != FREE)]
        if not len(lines):
            return
        at = torch.from_numpy(lines).to(self.device)
        weights, state = self.weights[at].cpu(), self.state[at].cpu()
        self.store.write(self.id_of[lines], self.slot_of[lines], weights, state)
        with self.lock:
            self.dirty[lines] = False
        self.figures.written_back += len(lines)

    def _forget(self, lines: Places) -> None:
        with self.lock:
            held = lines[self.slot_of[lines] != FREE]
            self.where[self.slot_of[held]] = FREE
            self.slot_of[held] = FREE
            self.dirty[lines] = False

    def _read_below(self, ids: Ids, slots: Places, fresh: Fresh) -> tuple[Tensor, Tensor]:
        weights, state = self.form.empty(len(ids))
        old = ~fresh
        if old.any():
            at = torch.from_numpy(np.flatnonzero(old))
            weights[at], state[at] = self.store.read(ids[old], slots[old])
        return with_first(weights, state, ids, fresh, self.first)

    def release(self, lines: Places, changed: bool) -> None:
        """Unpin the lines of a batch; `changed`: its rows were updated."""
        with self.lock:
            self.pins[lines] -= 1
            if changed:
                self.dirty[lines] = True

    def drop(self, slots: Places) -> None:
        """Free the lines of rows that were removed. None of them is pinned."""
        lines = self.lines_at(slots)
        self._forget(lines[lines != FREE])

    def remove(self, ids: Ids, slots: Places) -> None:
        """Give up rows below. Their lines stay for batches in flight, until `drop`."""
        self.store.remove(ids, slots)

    def read(self, ids: Ids, slots: Places, fresh: Fresh) -> tuple[Tensor, Tensor]:
        """Copies of rows on the CPU, wherever they are. Nothing moves."""
        lines = self.lines_at(slots)
        held = lines != FREE
        weights, state = self._read_below(ids, slots, fresh | held)
        if held.any():
            at = torch.from_numpy(lines[held]).to(self.device)
            put = torch.from_numpy(np.flatnonzero(held))
            weights[put], state[put] = self.weights[at].cpu(), self.state[at].cpu()
        return weights, state

    def load(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Put rows into the store; those in the cache are forgotten. None of them is pinned."""
        lines = self.lines_at(slots)
        self._forget(lines[lines != FREE])
        self.store.write(ids, slots, weights, state)

    def age(self) -> None:
        """Halve the counts that decide who leaves."""
        self.score *= np.float32(0.5)

    def flush(self) -> None:
        """Write every changed row back."""
        self._write_back(np.flatnonzero(self.dirty))
        self.store.flush()

    def close(self) -> None:
        """Write back and let go."""
        self.flush()
        self.store.close()


def with_first(
    weights: Tensor, state: Tensor, ids: Ids, fresh: Fresh, first: FirstRows
) -> tuple[Tensor, Tensor]:
    """Rows with the first values where they were never written."""
    if fresh.any():
        at = torch.from_numpy(np.flatnonzero(fresh))
        own_weights, own_state = first(ids[fresh])
        weights[at], state[at] = own_weights.to(weights.dtype), own_state
    return weights, state


class CacheStore(RowStore):
    """A `RowCache` in host memory as the store of the cache on the device."""

    def __init__(self, cache: RowCache) -> None:
        self.cache = cache

    def reserve(self, slots: int) -> None:
        """Know slots below `slots`."""
        self.cache.reserve(slots)

    def read(self, ids: Ids, slots: Places) -> tuple[Tensor, Tensor]:
        """Rows, brought into the host's cache when they were not there."""
        parts = [self._read(ids[at], slots[at]) for at in self._portions(len(ids))]
        if not parts:
            return self.cache.form.empty(0)
        return torch.cat([w for w, _ in parts]), torch.cat([s for _, s in parts])

    def _portions(self, count: int) -> list[slice]:
        rows = len(self.cache.pins)
        return [slice(at, at + rows) for at in range(0, count, rows)]

    def _read(self, ids: Ids, slots: Places) -> tuple[Tensor, Tensor]:
        lines = self._lines(ids, slots)
        at = torch.from_numpy(lines)
        found = self.cache.weights[at], self.cache.state[at]
        self.cache.release(lines, changed=False)
        return found

    def _lines(self, ids: Ids, slots: Places) -> Places:
        held = self.cache.where[slots]
        counts = np.where(held == FREE, np.float32(0), self.cache.score[held]) + np.float32(1)
        return self.cache.lines(ids, slots, counts, np.zeros(len(ids), dtype=bool))

    def write(self, ids: Ids, slots: Places, weights: Tensor, state: Tensor) -> None:
        """Keep rows; those that leave for it go below."""
        for at in self._portions(len(ids)):
            self.cache.put(ids[at], slots[at], weights[at], state[at])

    def remove(self, ids: Ids, slots: Places) -> None:
        """Give rows up."""
        self.cache.drop(slots)
        self.cache.remove(ids, slots)

    def flush(self) -> None:
        """Write back."""
        self.cache.flush()

    def close(self) -> None:
        """Write back and let go."""
        self.cache.close()
