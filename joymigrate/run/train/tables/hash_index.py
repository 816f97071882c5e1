"""From ids to slots: a hash table of whole batches, in numpy, and the identity of a static table.

Open addressing with linear probing; a call probes all its ids at once, so that the number of numpy
calls is that of the longest probe and not of the ids. At most half of the places are taken.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from joymigrate.run.train.formats.first_rows import Ids, hash_ids

EMPTY, REMOVED = -1, -2  # instead of a slot
SMALLEST = 1024
ABSENT = -1

Places = npt.NDArray[np.int64]


class HashIndex:
    """Slots of ids without bounds."""

    def __init__(self, expected: int = 0) -> None:
        self.count = self.removed = 0
        self._allocate(max(SMALLEST, 2 * expected))

    def _allocate(self, least: int) -> None:
        size = 1 << max(0, least - 1).bit_length()
        self.mask = np.int64(size - 1)
        self.ids = np.zeros(size, dtype=np.int64)
        self.slots = np.full(size, EMPTY, dtype=np.int64)

    def __len__(self) -> int:
        return self.count

    def _first(self, ids: Ids) -> Places:
        places: Places = hash_ids(ids).view(np.int64) & self.mask
        return places

    def _places(self, ids: Ids) -> Places:
        """The place of each id, -1 where it is not there."""
        found = np.full(len(ids), ABSENT, dtype=np.int64)
        place, active = self._first(ids), np.arange(len(ids))
        while len(active):
            slots = self.slots[place]
            hit = (self.ids[place] == ids[active]) & (slots >= 0)
            found[active[hit]] = place[hit]
            going = ~hit & (slots != EMPTY)
            active, place = active[going], (place[going] + 1) & self.mask
        return found

    def find(self, ids: Ids) -> Places:
        """The slot of each id, -1 where there is none. Ids may repeat."""
        places = self._places(np.ascontiguousarray(ids))
        return np.where(places >= 0, self.slots[places], ABSENT)

    def insert(self, ids: Ids, slots: Places) -> None:
        """Add distinct ids that are not there yet."""
        if 2 * (self.count + self.removed + len(ids)) > len(self.slots):
            self._rebuild(len(ids))
        place, active = self._first(np.ascontiguousarray(ids)), np.arange(len(ids))
        while len(active):
            free = self.slots[place] < 0
            wanted, who = place[free], active[free]
            reused = int((self.slots[np.unique(wanted)] == REMOVED).sum())
            self.ids[wanted] = ids[who]  # of several that want a place the last one has it
            won = self.ids[wanted] == ids[who]
            self.slots[wanted[won]] = slots[who[won]]
            self.removed -= reused
            lost = ~free
            lost[np.flatnonzero(free)[~won]] = True
            active, place = active[lost], (place[lost] + 1) & self.mask
        self.count += len(ids)

    def remove(self, ids: Ids) -> None:
        """Forget distinct ids; those that are not there are passed over."""
        places = self._places(np.ascontiguousarray(ids))
        places = places[places >= 0]
        self.slots[places] = REMOVED
        self.count -= len(places)
        self.removed += len(places)

    def _rebuild(self, more: int) -> None:
        ids, slots = self.items()
        self._allocate(max(SMALLEST, 4 * (len(ids) + more)))
        self.count = self.removed = 0
        self.insert(ids, slots)

    def items(self) -> tuple[Ids, Places]:
        """All ids with their slots, in no order."""
        there = self.slots >= 0
        return self.ids[there], self.slots[there]


class Identity:
    """A static table: slot = id - first, for ids in [first, first + count)."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def find(self, ids: Ids) -> Places:
        """The slot of each id; the caller has checked the bounds."""
        return ids - self.first if self.first else ids
