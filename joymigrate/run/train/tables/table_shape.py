"""What part of a table a process has, and the rows of one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from joymigrate.run.train.formats.first_rows import Ids
from joymigrate.run.train.tables.hash_index import Places


@dataclass
class Ticket:
    """The rows of one batch. `slots` [U], -1 for ids without a row of their own."""

    ids: Ids
    slots: Places
    held: npt.NDArray[np.bool_]  # which have a row
    lines: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    places: Tensor | None = None  # the lines on the device
    outside: tuple[Tensor, Tensor] | None = None  # positions and first values of those without


@dataclass(frozen=True, slots=True)
class TableShape:
    """What part of a table this is: columns from `first_column`, static ids from `first_id`."""

    name: str
    columns: int
    rows: int  # static: ids in [first_id, first_id + rows)
    first_id: int = 0
    first_column: int = 0
    low: float = 0.0
    high: float = 0.0
    dtype: torch.dtype = torch.float32
