"""How many pods of a task each node can hold: cards, NUMA nodes, CPU and memory."""

from __future__ import annotations

import numpy as np

from joymigrate.run.cluster.cards import CardChoice
from joymigrate.run.cluster.policies._shares import open_shares
from joymigrate.run.cluster.shape import TaskShape
from joymigrate.run.cluster.state import ClusterState, Ints, Pool

BARRED = -1  # a held mask that keeps a node from every pod, those without cards too


def free_of(state: ClusterState, pool: Pool, hold: Ints | None) -> Ints:
    """The free cards of a pool's nodes that nobody else is meant to have."""
    free = state.free[pool.index]
    return free if hold is None else free & ~hold[pool.index]


def pick(shape: TaskShape, position: int, mask: int) -> int:
    """The cards of the next pod on this node, inside one NUMA node where there is such a choice."""
    select = table(shape, position).select
    return int(select[mask]) or int(shape.choice.select[mask])


def table(shape: TaskShape, position: int) -> CardChoice:
    """The table that chooses cards at this position of the pool."""
    for positions, choice in shape.numa:
        if position in positions:
            return choice
    return shape.choice


def pods_that_fit(
    state: ClusterState, shape: TaskShape, free: Ints, hold: Ints | None = None
) -> Ints:
    """How many pods of the task each node of the pool can hold; none where `hold` bars the node."""
    fits = shape.choice.fits[free]
    if shape.job.numa == "one" and shape.task.cards:
        fits = in_numa_nodes(shape, free)
    if shape.task.cpu_milli or shape.task.memory_mib:
        fits = np.minimum(fits, room(state, shape))
    if not shape.task.cards:
        fits = np.where(state.ready[shape.pool.index], fits, 0)
    if hold is not None and not shape.task.cards:
        fits = np.where(hold[shape.pool.index] == BARRED, 0, fits)
    return fits


def in_numa_nodes(shape: TaskShape, free: Ints) -> Ints:
    """How many pods each node can hold with each inside one NUMA node."""
    fits = np.zeros_like(free)
    for positions, choice in shape.numa:
        fits[positions] = choice.fits[free[positions]]
    return fits


def shares_that_fit(state: ClusterState, shape: TaskShape, hold: Ints | None) -> Ints:
    """How many pods with a share of a card each node of the pool can hold."""
    fits = (open_shares(state, shape, hold) // shape.task.milli).sum(axis=1)
    both: Ints = np.minimum(fits, room(state, shape))
    return both


def room(state: ClusterState, shape: TaskShape) -> Ints:
    """How many pods each node's CPU and memory allow."""
    task, index = shape.task, shape.pool.index
    pods = np.full(len(shape.pool.nodes), 1 << 30, dtype=np.int64)
    if task.cpu_milli:
        pods = np.minimum(pods, state.cpu[index] // task.cpu_milli)
    if task.memory_mib:
        pods = np.minimum(pods, state.memory[index] // task.memory_mib)
    return np.maximum(pods, 0)
