"""One table, or one process's part of one: which ids have rows, where they lie, how they change.

    ticket = table.prepare(ids, counts)      # distinct ids; admits, evicts, finds slots
    table.bring(ticket)                      # rows to the device, pinned (may raise CacheFull)
    rows = table.rows(ticket)                # [U, D] float32, as they are now
    table.update(ticket, gradients)          # or table.release(ticket) without one

`prepare` and `bring` are called in the order of the batches by one thread, `rows`, `update` and
`release` by the same or another one. What `prepare` decides depends on ids alone, never on values,
so a batch may be prepared while those before it are still computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.train.formats.first_rows import Ids, UniformRows
from joymigrate.run.train.tables.admission import IdCounter
from joymigrate.run.train.tables.bags import Bags
from joymigrate.run.train.tables.configs import AdmissionRule, TableOptions
from joymigrate.run.train.tables.evict import choose_victims
from joymigrate.run.train.tables.hash_index import ABSENT, HashIndex, Identity, Places
from joymigrate.run.train.tables.lock import TableLock
from joymigrate.run.train.tables.row_optimiser import RowOptimiser
from joymigrate.run.train.tables.stores import RowFormat, RowStore, open_store
from joymigrate.run.train.tables.table_shape import TableShape, Ticket
from joymigrate.run.train.tables.tiers import CacheStore, ResidentRows, RowCache

CHUNK = 65536  # rows at a time where a whole table is read
FIRST_SLOTS = 1024
FILLED = 64 << 20  # bytes of a resident table whose first values are made with it: half a second
FILL_ROWS = 4096  # at a time: the words of that many stay in a processor's cache


class Table:
    """Rows by id. `rows_total` is what an error names as the bound of a static table."""

    def __init__(
        self,
        shape: TableShape,
        optimiser: RowOptimiser,
        options: TableOptions | None = None,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.shape, self.optimiser = shape, optimiser
        self.rates: Mapping[str, Any] = {"lr": optimiser.lr}  # a schedule may change it
        self.options = options or TableOptions()
        self.device, self.clock = torch.device(device), clock
        self.form = RowFormat(shape.columns, optimiser.state_width(shape.columns), shape.dtype)
        self.initial = UniformRows(
            shape.name, shape.columns, shape.low, shape.high, self.options.seed, shape.first_column
        )
        self.dynamic = self.options.dynamic
        self.candidates = IdCounter(self.options.admission or AdmissionRule())
        self.owner: Callable[[Ids], npt.NDArray[np.bool_]] | None = None  # of hashed parts
        self.lock = TableLock()  # in_flight, free slots
        self.batches = self.updates = self.finished = 0
        self.version = 1
        self.removed: list[tuple[int, Ids]] = []  # version, evicted ids
        self.ignored = 0  # sightings of ids without a row
        self.tier: ResidentRows | RowCache = self._open_tier()
        self._clear()

    @property
    def name(self) -> str:
        """The table's name."""
        return self.shape.name

    def _open_tier(self) -> ResidentRows | RowCache:
        options = self.options
        if options.cache_rows is None:
            return ResidentRows(self.form, self.device, self.first_rows)
        store: RowStore = open_store(
            options.store, self._store_name(), self.form,
            **({"patience_s": options.redis_patience_s} if "redis" in options.store[:6] else {}),
        )  # fmt: skip
        cpu = torch.device("cpu")
        if options.host_rows is not None and options.store != "memory":
            below = RowCache(self.name, self.form, options.host_rows, cpu, store, self.first_rows)
            store = CacheStore(below)
        rows = options.cache_rows if self.dynamic else min(options.cache_rows, self.shape.rows)
        return RowCache(self.name, self.form, rows, self.device, store, self.first_rows)

    def _store_name(self) -> str:
        part = self.shape
        if not part.first_id and not part.first_column:
            return part.name
        return f"{part.name}@{part.first_id}-{part.first_column}"

    def _clear(self) -> None:
        self.index: HashIndex | Identity = HashIndex()
        self.free: list[npt.NDArray[np.int64]] = []
        self.waiting = np.zeros(0, dtype=np.int64)  # slots given up whose gradient is to come
        self.capacity = self.used = 0
        for name, dtype in META:
            setattr(self, name, np.zeros(0, dtype=dtype))
        if not self.dynamic:
            self.index = Identity(self.shape.rows, self.shape.first_id)
            self._grow(self.shape.rows)
            self.used = self.shape.rows
            self.id_of = np.arange(self.used, dtype=np.int64) + self.shape.first_id
            if isinstance(self.tier, ResidentRows) and self.used * self.form.row_bytes <= FILLED:
                self._fill()

    def _fill(self) -> None:
        """First values of a small table now, which otherwise come with a row's first batch."""
        for start in range(0, self.used, FILL_ROWS):
            ids = self.id_of[start : start + FILL_ROWS]
            slots = np.arange(start, start + len(ids), dtype=np.int64)
            self.tier.load(ids, slots, *self.first_rows(ids))
        self.fresh[:] = False

    id_of: Ids
    count: npt.NDArray[np.float32]
    last: Places
    last_s: npt.NDArray[np.float64]
    changed: Places
    fresh: npt.NDArray[np.bool_]
    in_flight: npt.NDArray[np.int32]
    stamp: Places

    def first_rows(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """First weights and state of ids, on the CPU."""
        state = torch.full((len(ids), self.form.state), self.optimiser.initial)
        return torch.from_numpy(self.initial.rows(ids)).to(self.form.dtype), state

    # -- before the batch -----------------------------------------------------------------------

    def prepare(self, ids: Ids, counts: Places | None = None) -> Ticket:
        """Slots of distinct ids that were seen `counts` times in the batch (default: once)."""
        counts = np.ones(len(ids), dtype=np.int64) if counts is None else counts
        self.check(ids)
        self.batches += 1
        slots = self._slots(ids, counts) if self.dynamic else self.index.find(ids)
        held = slots != ABSENT
        mine = slots[held]
        self.count[mine] += counts[held]
        self.last[mine] = self.batches
        if self.options.eviction is not None and self.options.eviction.ttl_s is not None:
            self.last_s[mine] = self.clock()
        with self.lock:
            self.in_flight[mine] += 1
        self._evict_if_due()
        self._age_if_due()
        return Ticket(ids, slots, held)

    def check(self, ids: Ids) -> None:
        """Refuse ids that a static table has no row for."""
        if self.dynamic or not len(ids):
            return
        low, high = int(ids.min()), int(ids.max())
        first, stop = self.shape.first_id, self.shape.first_id + self.shape.rows
        if low < first or high >= stop:
            bad = low if low < first else high
            raise JoyError(
                f"id {bad} is outside of [{first}, {stop})",
                where=f"table '{self.name}'",
                help="raise num_embeddings, hash the ids, or make the table dynamic",
            )

    def _slots(self, ids: Ids, counts: Places) -> Places:
        slots = self.index.find(ids)
        new = np.flatnonzero(slots == ABSENT)
        if not len(new):
            return slots
        admitted = new[self.candidates.admit(ids[new], counts[new])]
        self.ignored += int(counts[new].sum() - counts[admitted].sum())
        slots[admitted] = taken = self._take(len(admitted))
        assert isinstance(self.index, HashIndex)
        self.index.insert(ids[admitted], taken)
        self.id_of[taken], self.fresh[taken] = ids[admitted], True
        self.count[taken] = 0
        self.changed[taken] = self.version
        return slots

    def _take(self, count: int) -> Places:
        with self.lock:
            free = np.concatenate([*self.free, np.zeros(0, dtype=np.int64)])
            self.free = [free[count:]] if len(free) > count else []
        free = free[:count]
        more = count - len(free)
        if self.used + more > self.capacity:
            self._grow(max(FIRST_SLOTS, 2 * self.capacity, self.used + more))
        new = np.arange(self.used, self.used + more, dtype=np.int64)
        self.used += more
        return np.concatenate((free, new))

    def _grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        self.tier.reserve(capacity)
        with self.lock:
            for name, dtype in META:
                tail = np.full(more, name == "fresh", dtype=dtype)
                setattr(self, name, np.concatenate((getattr(self, name), tail)))
            self.capacity = capacity

    def _evict_if_due(self) -> None:
        rule = self.options.eviction
        if rule is None or self.batches % rule.every:
            return
        assert isinstance(self.index, HashIndex)
        _, slots = self.index.items()
        slots = np.sort(slots)
        old = slots[self.last[slots] < self.batches]  # never a row of this batch
        now = self.clock() if rule.ttl_s is not None else 0.0
        self.evict(choose_victims(rule, self, slots, old, now))
        if rule.min_count is not None:
            self.count[slots] = 0

    def evict(self, slots: Places) -> None:
        """Give rows up: their ids start anew when they come back."""
        if not len(slots):
            return
        assert isinstance(self.index, HashIndex)
        ids = self.id_of[slots].copy()
        self.index.remove(ids)
        self.removed.append((self.version, ids))
        self.tier.remove(ids, slots)
        with self.lock:
            pending = self.in_flight[slots] > 0
            self.waiting = np.concatenate((self.waiting, slots[pending]))
            self._give_back(slots[~pending])

    def _give_back(self, slots: Places) -> None:
        if len(slots):
            self.tier.drop(slots)
            self.free.append(slots)

    def _age_if_due(self) -> None:
        if self.options.cache_rows is not None and self.batches % self.options.cache_age == 0:
            self.count *= np.float32(0.5)
            if isinstance(self.tier, RowCache):
                self.tier.age()

    def bring(self, ticket: Ticket) -> None:
        """Bring the rows to the device, pinned. `CacheFull`: try again when others are done."""
        slots, ids = ticket.slots[ticket.held], ticket.ids[ticket.held]
        lines = self.tier.lines(ids, slots, self.count[slots], self.fresh[slots])
        self.fresh[slots] = False
        ticket.lines = lines
        ticket.places = torch.from_numpy(lines).to(self.device)
        if not ticket.held.all():
            absent = ~ticket.held
            at = torch.from_numpy(np.flatnonzero(absent)).to(self.device)
            values = torch.from_numpy(self.initial.rows(ticket.ids[absent])).to(self.device)
            ticket.outside = at, values

    # -- the batch ------------------------------------------------------------------------------

    def rows(self, ticket: Ticket) -> Tensor:
        """[U, D] in float32: the rows as they are now."""
        assert ticket.places is not None
        with self.tier.lock:
            found = self.tier.weights.index_select(0, ticket.places).float()
        if ticket.outside is None:
            return found
        at, values = ticket.outside
        rows = values.new_empty(len(ticket.ids), self.form.columns)
        rows.index_copy_(0, at, values)
        return rows.index_copy_(0, self._held_at(ticket), found)

    def pool(self, ticket: Ticket, bags: Bags) -> Tensor:
        """[B, D] in float32: the sums of each bag's rows, as they are now."""
        if ticket.outside is not None or self.form.dtype != torch.float32:
            return bags.pool(self.rows(ticket))
        with self.tier.lock:
            return bags.pool(self.tier.weights, ticket.places)

    def _held_at(self, ticket: Ticket) -> Tensor:
        return torch.from_numpy(np.flatnonzero(ticket.held)).to(self.device)

    def update(self, ticket: Ticket, gradients: Tensor) -> None:
        """Change the rows by the sums of their gradients [U, D], and let them go."""
        assert ticket.places is not None
        self.updates += 1
        if ticket.outside is not None:
            gradients = gradients.index_select(0, self._held_at(ticket))
        if len(ticket.lines):
            with self.tier.lock:
                kernels.op("row_update")(
                    self.tier.weights, self.tier.state, ticket.places, gradients.float(),
                    self.updates, **(self.optimiser.arguments() | {"lr": self.rates["lr"]}),
                )  # fmt: skip
        slots = ticket.slots[ticket.held]
        with self.lock:
            self.changed[slots] = self.version
            self.stamp[slots] = self.updates
            self.finished = self.updates  # behind the stamps: who reads rows now sees them all
        self.release(ticket, changed=True)

    def release(self, ticket: Ticket, changed: bool = False) -> None:
        """Let the rows of a batch go."""
        slots = ticket.slots[ticket.held]
        self.tier.release(ticket.lines, changed)
        with self.lock:
            self.in_flight[slots] -= 1
            if len(self.waiting):
                done = self.in_flight[self.waiting] == 0
                gone, self.waiting = self.waiting[done], self.waiting[~done]
                self._give_back(gone)

    def abandon(self, ticket: Ticket) -> None:
        """Let a batch go that was prepared and never brought."""
        ticket.lines = np.zeros(0, dtype=np.int64)
        self.release(ticket)

    def lines_of(self, ids: Ids) -> Places | None:
        """The lines of ids, repeated ones too, where all of them are ready on the device."""
        if not isinstance(self.tier, RowCache):
            self.check(ids)
            slots = self.index.find(ids)
            if self.dynamic and len(slots) and slots.min() < 0:
                return None
            return None if self.fresh[slots].any() else slots
        slots = self.index.find(ids)
        if self.dynamic and len(slots) and slots.min() < 0:
            return None
        try:  # it looks at the bounds itself
            found = torch.from_numpy(self.tier.where).gather(0, torch.from_numpy(slots))
        except RuntimeError:
            self.check(ids)
            raise
        lines: Places = found.numpy()
        return None if len(lines) and lines.min() < 0 else lines

    def look(self, ids: Ids) -> Tensor:
        """[U, D] in float32 on the device, for a pass that learns nothing."""
        self.check(ids)
        lines = self.lines_of(ids)
        if lines is not None:
            at = torch.from_numpy(np.ascontiguousarray(lines)).to(self.device, torch.int64)
            with self.tier.lock:
                return self.tier.weights.index_select(0, at).float()
        return self.read(ids)[0].to(self.device).float()

    # -- the whole table ------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows that are held: all of a static table, those admitted of a dynamic one."""
        return len(self.index)

    def live(self) -> Places:
        """Slots in use, by id."""
        if not self.dynamic:
            return np.arange(self.shape.rows, dtype=np.int64)
        assert isinstance(self.index, HashIndex)
        ids, slots = self.index.items()
        return slots[np.argsort(ids, kind="stable")]

    def read(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """Weights [n, D] and state [n, S] of any ids, on the CPU; nothing is admitted or moved."""
        self.check(ids)
        slots = self.index.find(ids)
        weights, state = self.first_rows(ids)
        held = slots != ABSENT
        if held.any():
            at = torch.from_numpy(np.flatnonzero(held))
            mine = slots[held]
            weights[at], state[at] = self.tier.read(ids[held], mine, self.fresh[mine])
        return weights, state

    def row_chunks(self, slots: Places | None = None) -> Iterator[tuple[Ids, Tensor, Tensor]]:
        """Ids, weights and state, some thousand rows at a time, in the order of the ids."""
        slots = self.live() if slots is None else slots
        for start in range(0, len(slots), CHUNK):
            some = slots[start : start + CHUNK]
            yield self.id_of[some], *self.tier.read(self.id_of[some], some, self.fresh[some])

    def all_rows(self) -> Iterator[tuple[Ids, Tensor]]:
        """Ids and weights, some thousand rows at a time, in the order of the ids."""
        for ids, weights, _ in self.row_chunks():
            yield ids, weights

    def load_weights(self, weights: Tensor, ids: Ids | None = None) -> None:
        """Take over weights [n, D] of `ids` (static tables: of all ids of the whole table).

        The optimiser's state of these rows starts anew. A dynamic table holds these ids alone then.
        """
        shape = self.shape
        if ids is None:
            weights = weights[shape.first_id : shape.first_id + shape.rows]
            ids = np.arange(len(weights), dtype=np.int64) + shape.first_id
        if weights.shape[1] != shape.columns or (not self.dynamic and len(ids) != shape.rows):
            raise JoyError(
                f"weights of {len(ids)} x {weights.shape[1]} don't fit a table of "
                f"{shape.rows} x {shape.columns}",
                where=f"table '{self.name}'",
            )
        state = torch.full((len(ids), self.form.state), self.optimiser.initial)
        self.load(np.ascontiguousarray(ids), weights.to(self.form.dtype), state)

    def load(self, ids: Ids, weights: Tensor, state: Tensor, replace: bool = True) -> None:
        """Take over rows; with `replace` a dynamic table holds these alone then."""
        if self.dynamic and replace:
            self.drop_all()
        slots = self.index.find(ids)
        new = slots == ABSENT
        if new.any():
            slots[new] = taken = self._take(int(new.sum()))
            assert isinstance(self.index, HashIndex)
            self.index.insert(ids[new], taken)
            self.id_of[taken] = ids[new]
        self.tier.load(ids, slots, weights, state)
        self.fresh[slots] = False
        self.changed[slots] = self.version

    def owns(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids belong to this part."""
        if self.owner is not None:
            return self.owner(ids)
        if self.dynamic:
            return np.ones(len(ids), dtype=bool)
        first = self.shape.first_id
        return (ids >= first) & (ids < first + self.shape.rows)

    def restart(self) -> None:
        """Forget every row: those of a static table have their first values again."""
        if self.dynamic:
            self.drop_all()
            self.candidates = IdCounter(self.options.admission or AdmissionRule())
        else:
            self.fresh[:] = True
            if isinstance(self.tier, RowCache):
                self.tier.drop(np.arange(self.shape.rows, dtype=np.int64))
        self.removed = []

    def drop_all(self) -> None:
        """Give up every row of a dynamic table."""
        assert isinstance(self.index, HashIndex)
        _, slots = self.index.items()
        self.evict(slots)

    def advance(self) -> int:
        """Close the present version and return its number; later changes belong to the next."""
        with self.lock:
            self.version += 1
            return self.version - 1

    def changed_slots(self, since: int) -> Places:
        """Slots of rows admitted or updated in a version later than `since`, by id."""
        slots = self.live()
        found: Places = slots[self.changed[slots] > since]
        return found

    def changed_rows(self, since: int) -> tuple[Ids, Tensor]:
        """Ids [n] and weights [n, D] of rows admitted or updated in versions after `since`."""
        parts = [(ids, weights) for ids, weights, _ in self.row_chunks(self.changed_slots(since))]
        if not parts:
            return np.zeros(0, dtype=np.int64), self.form.empty(0)[0]
        return np.concatenate([ids for ids, _ in parts]), torch.cat([rows for _, rows in parts])

    def removed_ids(self, since: int) -> Ids:
        """Ids evicted in versions after `since` that have no row now."""
        parts = [ids for version, ids in self.removed if version > since]
        ids = np.unique(np.concatenate([*parts, np.zeros(0, dtype=np.int64)]))
        gone: Ids = ids[self.index.find(ids) == ABSENT]
        return gone

    def forget_removed(self, until: int) -> None:
        """Drop the record of evictions in versions up to `until`."""
        self.removed = [item for item in self.removed if item[0] > until]

    def flush(self) -> None:
        """Write changed rows back to the store."""
        self.tier.flush()

    def close(self) -> None:
        """Write back and let go."""
        self.tier.close()


# What is kept for each slot beside the row: 49 bytes.
META: tuple[tuple[str, Any], ...] = (
    ("id_of", np.int64),
    ("count", np.float32),  # sightings, aged
    ("last", np.int64),  # the batch that saw it last
    ("last_s", np.float64),  # the time of that, where eviction asks for it
    ("changed", np.int64),  # the version that changed it last
    ("fresh", bool),  # never brought to the device: its first value holds
    ("in_flight", np.int32),  # batches that hold it
    ("stamp", np.int64),  # the number of its last update
)
