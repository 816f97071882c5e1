"""Who holds what, as arrays, and what would be free if some of them stopped.

Asking "and if these ended?" is one weighted count over the rows, so that reservations and evictions
over thousands of running jobs cost microseconds, not a walk over all of them.

Legend: R rows (one per pod), S slots (one per running job).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.state import WHOLE, ClusterState, Ints, Placement

Flags = NDArray[np.bool_]
FIELDS = 6  # node, mask, thousandths, CPU, memory, slot
NODE, MASK, MILLI, CPU, MEMORY, SLOT = range(FIELDS)


class Allocations:
    """Rows of all running pods; a job's rows are found by its slot."""

    def __init__(self) -> None:
        self.rows: Ints = np.full((FIELDS, 1024), -1, dtype=np.int64)
        self.used = 0
        self.dead = 0
        self.ends: NDArray[np.float64] = np.full(256, np.inf)  # as jobs state them
        self.expected: NDArray[np.float64] = np.full(256, np.inf)  # or as their like has run
        self.live: Flags = np.zeros(256, dtype=bool)
        self.sizes: Ints = np.zeros(256, dtype=np.int64)  # whole cards per slot
        self.names: list[str] = [""] * 256
        self._slot: dict[str, int] = {}
        self._span: dict[int, tuple[int, int]] = {}
        self._on_node: dict[int, set[int]] = {}  # slots
        self._free = list(range(255, -1, -1))

    def add(
        self, name: str, placement: Placement, ends: float, expected: float | None = None
    ) -> None:
        """A job starts; without an `expected` end it is the stated one."""
        if not self._free:
            self._grow_slots()
        slot = self._free.pop()
        self._slot[name] = slot
        self.names[slot], self.ends[slot], self.live[slot] = name, ends, True
        self.expected[slot] = ends if expected is None else expected
        while self.used + len(placement) > self.rows.shape[1]:
            self._make_room()
        self.sizes[slot] = sum(grant.mask.bit_count() for grant in placement)
        begin = self.used
        for grant in placement:
            self.rows[:, self.used] = (
                grant.node, grant.mask, grant.milli, grant.cpu_milli, grant.memory_mib, slot,
            )  # fmt: skip
            self.used += 1
            self._on_node.setdefault(grant.node, set()).add(slot)
        self._span[slot] = (begin, self.used)

    def drop(self, name: str) -> None:
        """A job stops."""
        slot = self._slot.pop(name)
        begin, end = self._span.pop(slot)
        for node in set(self.rows[NODE, begin:end].tolist()):
            self._on_node[node].discard(slot)
        self.rows[SLOT, begin:end] = -1
        self.dead += end - begin
        self.live[slot], self.names[slot] = False, ""
        self.ends[slot] = self.expected[slot] = np.inf
        self._free.append(slot)

    def _grow_slots(self) -> None:
        size = len(self.live)
        self.ends = np.concatenate([self.ends, np.full(size, np.inf)])
        self.expected = np.concatenate([self.expected, np.full(size, np.inf)])
        self.live = np.concatenate([self.live, np.zeros(size, dtype=bool)])
        self.sizes = np.concatenate([self.sizes, np.zeros(size, dtype=np.int64)])
        self.names += [""] * size
        self._free = list(range(2 * size - 1, size - 1, -1))

    def _make_room(self) -> None:
        """Close the gaps, or double the table where there are few."""
        if not self.dead or self.dead * 2 < self.used:
            more = np.full_like(self.rows, -1)
            self.rows = np.concatenate([self.rows, more], axis=1)
            return
        kept = self.rows[:, : self.used][:, self.rows[SLOT, : self.used] >= 0]
        size = kept.shape[1]
        self.rows[:, :size] = kept
        self.rows[:, size:] = -1
        self.used, self.dead = size, 0
        starts = np.nonzero(np.diff(kept[SLOT], prepend=-2))[0]
        ends = [*starts[1:].tolist(), size] if size else []
        self._span = {
            int(kept[SLOT, begin]): (int(begin), int(end))
            for begin, end in zip(starts, ends, strict=True)
        }

    def last_end(self, node: int) -> float:
        """When the last job of a node is expected to end (s); 0 where none runs."""
        return max((float(self.expected[s]) for s in self._on_node.get(node, ())), default=0.0)

    def on(self, node: int) -> list[tuple[str, int]]:
        """Jobs that hold something of a node, and their cards there as a mask."""
        found = []
        for slot in self._on_node.get(node, ()):
            begin, end = self._span[slot]
            mine = self.rows[NODE, begin:end] == node
            mask = np.bitwise_or.reduce(self.rows[MASK, begin:end][mine])
            found.append((self.names[slot], int(mask)))
        return found

    def overdue(self, now: float) -> list[str]:
        """Jobs that run longer than they said, or than was expected of them."""
        late = self.live & (self.expected <= now)
        return [self.names[slot] for slot in np.nonzero(late)[0]]

    def expect(self, name: str, ends: float) -> None:
        """Expect another end of a job."""
        self.expected[self._slot[name]] = ends

    def flags(self, names: list[str]) -> Flags:
        """These jobs, as flags per slot."""
        found = np.zeros(len(self.live), dtype=bool)
        found[[self._slot[name] for name in names]] = True
        return found

    @contextmanager
    def without(self, state: ClusterState, gone: Flags) -> Iterator[None]:
        """The state as if these jobs had given everything back, for the time of the block."""
        slots = self.rows[SLOT, : self.used]
        mine = self.rows[:, : self.used][:, gone[slots] & (slots >= 0)]
        kept = (state.idle, state.free, state.share, state.cpu, state.memory, state.version)
        whole = mine[:, mine[MILLI] == 0] if mine[MILLI].any() else mine
        back = np.bincount(whole[NODE], weights=whole[MASK], minlength=len(state.idle))
        # Masks of one node are disjoint: their sum is their union, exact in a double.
        idle = state.idle | back.astype(np.int64)
        if whole is not mine:
            state.share = state.share.copy()
            node, mask, milli = mine[:3, mine[MILLI] > 0]
            card = np.log2(mask).astype(np.int64)
            np.add.at(state.share, (node, card), milli)
            open_again = state.share[node, card] == WHOLE
            np.bitwise_or.at(idle, node[open_again], mask[open_again])
        if mine[CPU].any() or mine[MEMORY].any():
            state.cpu, state.memory = state.cpu.copy(), state.memory.copy()
            np.add.at(state.cpu, mine[NODE], mine[CPU])
            np.add.at(state.memory, mine[NODE], mine[MEMORY])
        state.idle, state.free = idle, idle & state.usable
        state.renew()
        try:
            yield
        finally:
            state.idle, state.free, state.share, state.cpu, state.memory, state.version = kept
