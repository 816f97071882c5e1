"""Which rows a dynamic table gives up."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.configs import Eviction
from joymigrate.run.train.tables.hash_index import Places


class Sightings(Protocol):
    """What is known of rows by slot."""

    batches: int
    id_of: Ids
    count: npt.NDArray[np.float32]
    last: Places
    last_s: npt.NDArray[np.float64]


def choose_victims(
    rule: Eviction, rows: Sightings, slots: Places, old: Places, now_s: float
) -> Places:
    """Of `old`, the slots that the rule gives up; `slots` are all in use."""
    gone = np.zeros(len(old), dtype=bool)
    if rule.min_count is not None:
        gone |= rows.count[old] < rule.min_count
    if rule.max_age is not None:
        gone |= rows.last[old] <= rows.batches - rule.max_age
    if rule.ttl_s is not None:
        gone |= rows.last_s[old] <= now_s - rule.ttl_s
    if rule.max_rows is None:
        return old[gone]
    excess = len(slots) - int(gone.sum()) - rule.max_rows
    if excess > 0:
        kept = np.flatnonzero(~gone)
        who = old[kept]
        # Least seen first, of those the one not seen longest, then by id: no order of slots counts.
        order = np.lexsort((rows.id_of[who], rows.last[who], rows.count[who]))
        gone[kept[order[:excess]]] = True
    return old[gone]
