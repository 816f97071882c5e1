"""How much of a node's free capacity typical work could not use, and how a request changes that.

For typical requests i with share p_i, a node's fragmentation is F = Σ p_i · (cards of the node that
request i cannot use): all free cards when the node cannot run the request at all, otherwise the
shares of cards that are smaller than it asks for. (Weng et al., "Beware of Fragmentation",
USENIX ATC 2023; written from the paper.)

Legend: S node states, T typical requests, W = 16 cards, M distinct shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.policies import Typical

if TYPE_CHECKING:
    from joymigrate.run.cluster.shape import TaskShape
    from joymigrate.run.cluster.state import ClusterState, Ints, Pool

Floats = NDArray[np.float64]
WHOLE = 1000


class Fragments:
    """F for node states: CPU left (S,) and thousandths left per card (S, W)."""

    def __init__(self, demand: Sequence[Typical]) -> None:
        self.share = np.array([t.share for t in demand])
        self.cpu = np.array([t.cpu_milli for t in demand], dtype=np.int64)
        self.cards = np.array([t.cards or (1 if t.milli else 0) for t in demand], dtype=np.int64)
        asks = np.array([t.milli or WHOLE for t in demand], dtype=np.int64)
        self.asks, self.ask_of = np.unique(asks, return_inverse=True)
        self.plain = self.cards == 0  # requests without cards can use no card at all

    def of(self, cpu: Ints, left: Ints) -> Floats:
        """F of each state, in thousandths of a card."""
        total = left.sum(axis=1)
        enough = left[:, None, :] >= self.asks[None, :, None]  # S, M, W
        fitting = enough.sum(axis=2)
        unusable = total[:, None] - (left[:, None, :] * enough).sum(axis=2)  # S, M
        runs = (cpu[:, None] >= self.cpu) & (fitting[:, self.ask_of] >= self.cards) & ~self.plain
        lost = np.where(runs, unusable[:, self.ask_of], total[:, None])  # S, T
        return lost @ self.share  # type: ignore[no-any-return]


def shares_left(state: ClusterState, index: slice | Ints) -> Ints:
    """Thousandths left per card (S, W): 0 for cards that are absent or held whole."""
    bit = np.arange(16)
    usable = (state.usable[index][:, None] >> bit) & 1
    idle = (state.idle[index][:, None] >> bit) & 1
    share = state.share[index]
    return np.where(usable & ((idle == 1) | (share < WHOLE)), share, 0)


class ScoreCache:
    """Cost and card of one request on every node of a pool, refreshed where something changed."""

    def __init__(self, nodes: int) -> None:
        self.cost = np.full(nodes, np.inf)
        self.card = np.zeros(nodes, dtype=np.int64)
        self.seen = 0
        self.fresh = False


class Gradient:
    """ΔF of placing one pod on each node, remembered per request."""

    def __init__(self, fragments: Fragments) -> None:
        self.fragments = fragments
        self._known: dict[tuple[object, ...], ScoreCache] = {}
        self._position: dict[Pool, Ints] = {}

    def of(self, state: ClusterState, shape: TaskShape) -> ScoreCache:
        """ΔF per node of the pool (∞ where the pod does not fit), and the card of a share."""
        task, pool = shape.task, shape.pool
        key = (state, pool, task.cards, task.milli, task.cpu_milli, task.memory_mib)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = ScoreCache(len(pool.nodes))
        log = state.touched
        if not known.fresh:
            changed = np.arange(len(pool.nodes))
        elif known.seen < len(log):
            changed = self._positions(state, shape, log[known.seen :])
        else:
            return known
        known.seen, known.fresh = len(log), True
        if len(changed):
            known.cost[changed], known.card[changed] = self._measure(state, shape, changed)
        return known

    def _positions(self, state: ClusterState, shape: TaskShape, touched: list[int]) -> Ints:
        pool = shape.pool
        where = self._position.get(pool)
        if where is None:
            where = np.full(len(state.nodes), -1, dtype=np.int64)
            where[pool.nodes] = np.arange(len(pool.nodes))
            self._position[pool] = where
        found = where[list(set(touched))]
        return np.sort(found[found >= 0])

    def _measure(self, state: ClusterState, shape: TaskShape, at: Ints) -> tuple[Floats, Ints]:
        """ΔF and card for the nodes at these positions of the pool."""
        task = shape.task
        nodes = shape.pool.nodes[at]
        cost, card = np.full(len(at), np.inf), np.zeros(len(at), dtype=np.int64)
        fits = (state.cpu[nodes] >= task.cpu_milli) & (state.memory[nodes] >= task.memory_mib)
        left = shares_left(state, nodes)
        if task.milli:
            fits &= (left >= task.milli).any(axis=1)
        elif task.cards:
            fits &= shape.choice.select[state.free[nodes]] > 0
        where = np.nonzero(fits)[0]
        if not len(where):
            return cost, card
        left, nodes = left[where], nodes[where]
        cpu = state.cpu[nodes] - task.cpu_milli
        before = self.fragments.of(state.cpu[nodes], left)
        if task.milli:
            best, chosen = self._best_card(left, cpu, task.milli)
            cost[where], card[where] = best - before, chosen
            return cost, card
        taken = shape.choice.select[state.free[nodes]] if task.cards else np.zeros_like(cpu)
        rest = np.where((taken[:, None] >> np.arange(16)) & 1, 0, left)
        cost[where] = self.fragments.of(cpu, rest) - before
        return cost, card

    def _best_card(self, left: Ints, cpu: Ints, milli: int) -> tuple[Floats, Ints]:
        """The card of each node whose use leaves the least F behind."""
        best = np.full(len(left), np.inf)
        chosen = np.zeros(len(left), dtype=np.int64)
        rows, columns = np.nonzero(left >= milli)
        if not len(rows):
            return best, chosen
        # Cards of one node with the same room are the same choice: keep the first of each.
        keys = rows * (WHOLE + 1) + left[rows, columns]
        _, first = np.unique(keys, return_index=True)
        first.sort()
        rows, columns = rows[first], columns[first]
        after = left[rows].copy()
        after[np.arange(len(rows)), columns] -= milli
        values = self.fragments.of(cpu[rows], after)
        for row, column, value in zip(rows, columns, values, strict=True):
            if value < best[row] - 1e-9:
                best[row], chosen[row] = value, column
        return best, chosen
