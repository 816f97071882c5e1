"""The card for a share of a card: the tightest one that has room, or the emptiest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints


def open_shares(state: ClusterState, shape: TaskShape, hold: Ints | None) -> Ints:
    """Thousandths free per node and card of the pool (N, W); 0 where the task may not go."""
    pool, task = shape.pool, shape.task
    usable = state.usable[pool.index]
    if hold is not None:
        usable = usable & ~hold[pool.index]
    allowed = (usable[:, None] >> np.arange(16)) & 1
    shares = state.share[pool.index] * allowed
    # A card whose bit is taken although no share is missing is held whole by another job.
    whole_taken = (state.idle[pool.index][:, None] >> np.arange(16) & 1) == 0
    shares = np.where(whole_taken & (state.share[pool.index] == 1000), 0, shares)
    if task.cpu_milli:
        shares = np.where((state.cpu[pool.index] >= task.cpu_milli)[:, None], shares, 0)
    if task.memory_mib:
        shares = np.where((state.memory[pool.index] >= task.memory_mib)[:, None], shares, 0)
    return shares


def tightest(state: ClusterState, shape: TaskShape, hold: Ints | None) -> tuple[int, int]:
    """Node and card with the least room that is enough; fuller nodes first among equals."""
    shares = open_shares(state, shape, hold)
    room = np.where(shares >= shape.task.milli, shares - shape.task.milli, 1 << 20)
    best = room.min(axis=1) * 32 + (shares >= 1000).sum(axis=1)
    position = int(best.argmin())
    if best[position] >= 1 << 20:
        return -1, -1
    return int(shape.pool.nodes[position]), int(room[position].argmin())


def emptiest(state: ClusterState, shape: TaskShape, hold: Ints | None) -> tuple[int, int]:
    """Node with the most room, and its emptiest card."""
    shares = open_shares(state, shape, hold)
    fits = (shares >= shape.task.milli).any(axis=1)
    total = np.where(fits, shares.sum(axis=1), -1)
    position = int(total.argmax())
    if total[position] < 0:
        return -1, -1
    return int(shape.pool.nodes[position]), int(shares[position].argmax())
