"""What one process asks of a part of a table: ids with counts for rows, or with lengths for sums.

In words of 4 bytes: the ids (one word each where the table has fewer than 2^31 rows, else two),
then a number a unit: how often a row was seen, or how long a bag is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places
from joymigrate.run.train.tables.route import TableRoute

KEYS, UNITS, POOLED = range(3)  # of a question's size
MEASURE_EVERY = 32  # batches between counts of distinct ids, where bags are sent


@dataclass(frozen=True, slots=True)
class TableQuestion:
    """`extra` is by unit; `at` the units' places in the table's result, None for all in order."""

    ids: Ids
    extra: Places
    at: Places | None
    pooled: bool

    def size(self) -> tuple[int, int, int]:
        """Keys, units, and whether units are bags."""
        return len(self.ids), len(self.extra), int(self.pooled)

    def words(self, wide: bool) -> npt.NDArray[np.int32]:
        """As it is sent."""
        ids = self.ids.view(np.int32) if wide else self.ids.astype(np.int32)
        return np.concatenate((ids, self.extra.astype(np.int32)))

    def places(self, device: torch.device) -> Tensor | None:
        """`at` on the device."""
        return None if self.at is None else torch.from_numpy(self.at).to(device)


NOTHING = TableQuestion(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), None, False)


@dataclass(frozen=True, slots=True)
class QuestionSizes:
    """Sizes of questions, [world, parts, 3]: those sent to each rank, and those got from each."""

    sent: Places
    got: Places


def read_question(words: Any, size: Places, wide: bool) -> tuple[Ids, Places, Places]:
    """Ids [keys], how often each counts [keys], and the lengths of the units; `size` [3]."""
    keys, units, pooled = (int(number) for number in size)
    head = keys * (2 if wide else 1)
    ids = words[:head].view(np.int64) if wide else words[:head].astype(np.int64)
    extra = words[head:].astype(np.int64)
    if pooled:
        return ids, np.ones(keys, dtype=np.int64), extra
    return ids, extra, np.ones(units, dtype=np.int64)


def is_wide(bound: int | None) -> bool:
    """Whether ids need 8 bytes."""
    return bound is None or bound > 2**31


def bags_in_part(ids: Ids, bag: Places, mine: npt.NDArray[np.bool_], count: int) -> TableQuestion:
    """The bags that have values in one part, with these values alone."""
    lengths = np.bincount(bag[mine], minlength=count)
    at = np.flatnonzero(lengths)
    return TableQuestion(ids[mine], lengths[at], at, True)


class Way:
    """Whether a table's rows or the sums of its bags are fewer bytes, by what was seen last."""

    def __init__(self) -> None:
        self.batches = self.sums = 0  # that were looked at, and sent as sums
        self.unique = 1.0  # distinct ids by values

    def pools(self, asked: TableRoute, columns: int, cut: int) -> bool:
        """Bags, each in `cut` parts at most, against distinct rows; there and back in float32.

        Of a bag with n values (1 - (1 - 1/cut)^n) · cut parts have some, if ids are spread evenly.
        """
        values, bags = len(asked.given), len(asked.lengths)
        if not values or not bags:
            return False
        if self.batches % MEASURE_EVERY == 0:
            self.unique = len(asked.distinct.ids) / values
        self.batches += 1
        each = cut * (1 - (1 - 1 / cut) ** (values / bags)) if cut > 1 else 1
        of_bags = each * bags * (8 * columns + 4) + 8 * values
        pays = of_bags < self.unique * values * (8 * columns + 12)
        self.sums += pays
        return pays
