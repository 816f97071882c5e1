"""When and where a job that fits nowhere will fit: the earliest stated ends that make room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from joymigrate.run.cluster.jobs import Job
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.reasons import Refusal
from joymigrate.run.cluster.state import Ints, Placement, State


class Ending(Protocol):
    """A running job: what it holds and when it ends (infinite where nobody knows)."""

    placement: Placement
    ends: float


@dataclass(frozen=True, slots=True)
class Room:
    """The cards a job will get, at what time, and how many of the given jobs must end first."""

    placement: Placement
    until: float
    ended: int

    def mask(self, nodes: int) -> Ints:
        """The cards per node."""
        mask = np.zeros(nodes, dtype=np.int64)
        for grant in self.placement:
            mask[grant.node] |= grant.mask
        return mask


def earliest(state: State, placer: Placer, job: Job, ending: Sequence[Ending]) -> Room | None:
    """The shortest prefix of `ending` (sorted by end) whose end lets `job` start, or None.

    The state is left as it was.
    """
    saved = state.snapshot()
    low, high, released = 1, len(ending), 0
    found: Room | None = None
    try:
        while low <= high:
            middle = (low + high) // 2
            for run in ending[released:middle]:
                state.give(run.placement)
            for run in ending[middle:released]:
                state.take(run.placement)
            released = middle
            placed = placer.place(job)
            if isinstance(placed, Refusal):
                low = middle + 1
            else:
                high = middle - 1
                found = Room(placed, ending[middle - 1].ends, middle)
    finally:
        state.restore(saved)
    return found


def in_the_way(room: Room, ending: Sequence[Ending]) -> list[int]:
    """Indices of the jobs that hold cards of this room."""
    masks: dict[int, int] = {}
    for grant in room.placement:
        masks[grant.node] = masks.get(grant.node, 0) | grant.mask
    return [
        number
        for number, run in enumerate(ending[: room.ended])
        if any(masks.get(grant.node, 0) & grant.mask for grant in run.placement)
    ]
