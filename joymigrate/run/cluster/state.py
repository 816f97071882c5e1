"""What is free right now: the cluster as numpy arrays, changed only by `take` and `give`.

`give` is the exact inverse of `take`. Every change appends the node to `touched`, so that a policy
can refresh what it remembers about that node and nothing else.

Legend: N nodes in inventory order; W = 16 cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.inventory import Inventory, Node
from joymigrate.run.cluster.kinds import ServerKind

Ints = NDArray[np.int64]
WHOLE = 1000  # thousandths of a card


@dataclass(frozen=True, slots=True)
class Grant:
    """One pod's place: node index, mask of cards, thousandths (0: whole cards), CPU, memory."""

    node: int
    mask: int
    milli: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0


Placement = tuple[Grant, ...]


def masks_of(placement: Placement) -> dict[int, int]:
    """The cards that a placement holds, as a mask per node."""
    held: dict[int, int] = {}
    for grant in placement:
        held[grant.node] = held.get(grant.node, 0) | grant.mask
    return held


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Nodes of one layout that a request may use: `index` into the state's arrays.

    `leaf`, `spine`, `superpod` number the domains of these nodes from 0; -1 where a node has none.
    """

    kind: ServerKind
    index: slice | Ints
    nodes: Ints
    leaf: Ints
    spine: Ints
    superpod: Ints
    leaves: int
    spines: int
    superpods: int
    node_cards: int  # cards of the largest node
    one_kind: bool
    sizes: tuple[tuple[int, int, int], ...]  # CPU and memory of empty nodes, and how many of them

    @property
    def name(self) -> str:
        """What its cards are called: their kind, or their family where kinds are mixed."""
        return self.kind.name if self.one_kind else self.kind.family


class ClusterState:
    """Free cards, CPU and memory of every node."""

    def __init__(self, inventory: Inventory) -> None:
        nodes = inventory.nodes
        size = len(nodes)
        self.nodes: tuple[Node, ...] = nodes
        self.number = {node.name: i for i, node in enumerate(nodes)}
        present = [((1 << node.kind.cards) - 1) & ~cards.bits(node.unhealthy) for node in nodes]
        self.present: Ints = np.array(present, dtype=np.int64).reshape(size)
        self.usable: Ints = np.array(
            [
                mask & ~cards.bits(node.used) if node.ready else 0
                for mask, node in zip(present, nodes, strict=True)
            ],
            dtype=np.int64,
        ).reshape(size)
        missing = [cards.bits(node.absent) | cards.bits(node.used) for node in nodes]
        # Cards that jobs would be granted were all of them well.
        self.granted: Ints = np.array(
            [((1 << n.kind.cards) - 1) & ~gone for n, gone in zip(nodes, missing, strict=True)],
            dtype=np.int64,
        ).reshape(size)
        self.idle: Ints = np.full(size, (1 << 16) - 1, dtype=np.int64)
        self.share: Ints = np.full((size, 16), WHOLE, dtype=np.int64)
        for i, node in enumerate(nodes):
            for card, milli in node.shared.items():
                self.share[i, card] -= milli
                self.idle[i] &= ~(1 << card)
        self.free: Ints = self.idle & self.usable
        self.cpu: Ints = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self.ready = np.array([node.ready for node in nodes], dtype=bool)
        self.leaf = codes([node.leaf for node in nodes])
        self.spine = codes([node.spine for node in nodes])
        self.superpod = codes([node.superpod for node in nodes])
        # One more slot takes the nodes without a leaf (-1).
        self.leaf_free: Ints = np.bincount(
            self.leaf + 1, weights=cards.count(self.free), minlength=2
        ).astype(np.int64)
        self.kind = codes([node.kind.name for node in nodes])
        self.kind_free = [0] * (int(self.kind.max(initial=0)) + 1)
        for kind, free in zip(self.kind.tolist(), cards.count(self.free).tolist(), strict=True):
            self.kind_free[kind] += free
        widths = np.array([node.kind.cards for node in nodes], dtype=np.int64)
        self.broken: Ints = widths - cards.count(self.present)  # absent or unhealthy cards
        self.touched: list[int] = []
        self.version = self._last = 0  # another one for every state that there has been
        # When the last job of each node is expected to end (s, 0: none runs), and when the job
        # that a place is looked for would begin and end, where that is known.
        self.until = np.zeros(size)
        self.run: tuple[float, float] | None = None
        self.reserved = any(node.reserved for node in nodes)
        self.numa_known = any(node.numa for node in nodes)
        self._pools: dict[tuple[tuple[str, ...], tuple[str, ...], bool, str], list[Pool]] = {}

    def take(self, placement: Sequence[Grant]) -> None:
        """Hold the cards of a placement; they must be free."""
        self.renew()
        for grant in placement:
            node = grant.node
            self.cpu[node] -= grant.cpu_milli
            self.memory[node] -= grant.memory_mib
            if grant.milli:
                self.share[node, grant.mask.bit_length() - 1] -= grant.milli
            if grant.mask:
                self._refresh(node, int(self.idle[node]) & ~grant.mask)
            else:
                self.touched.append(node)

    def give(self, placement: Sequence[Grant]) -> None:
        """Free the cards of a placement that was taken."""
        self.renew()
        for grant in placement:
            node = grant.node
            self.cpu[node] += grant.cpu_milli
            self.memory[node] += grant.memory_mib
            back = grant.mask
            if grant.milli:
                card = grant.mask.bit_length() - 1
                self.share[node, card] += grant.milli
                back = grant.mask if self.share[node, card] == WHOLE else 0
            if back:
                self._refresh(node, int(self.idle[node]) | back)
            else:
                self.touched.append(node)

    def set_usable(self, node: int, mask: int, ready: bool) -> None:
        """Change which cards of a node may be granted: health or presence changed."""
        self.usable[node] = mask if ready else 0
        self.ready[node] = ready
        self.renew()
        self._refresh(node, int(self.idle[node]))

    def _refresh(self, node: int, idle: int) -> None:
        before = int(self.free[node])
        after = idle & int(self.usable[node])
        self.idle[node] = idle
        self.free[node] = after
        more = after.bit_count() - before.bit_count()
        self.leaf_free[self.leaf[node] + 1] += more
        self.kind_free[self.kind[node]] += more
        self.touched.append(node)

    def pools(
        self, kinds: tuple[str, ...], models: tuple[str, ...], cards: bool, queue: str
    ) -> list[Pool]:
        """The pools of a request in order of preference; `cards` False: any node will do."""
        key = (kinds, models, cards, queue if self.reserved else "")
        if key not in self._pools:
            self._pools[key] = self._make_pools(kinds, models, cards, queue)
        return self._pools[key]

    def _make_pools(
        self, kinds: tuple[str, ...], models: tuple[str, ...], cards: bool, queue: str
    ) -> list[Pool]:
        wanted: dict[object, list[int]] = {name: [] for name in kinds}
        for i, node in enumerate(self.nodes):
            if (models and node.model not in models) or node.reserved not in ("", queue):
                continue
            if kinds:
                if node.kind.name in wanted:
                    wanted[node.kind.name].append(i)
            elif not cards:
                wanted.setdefault("any", []).append(i)
            elif node.kind.cards:
                wanted.setdefault(node.kind.layout, []).append(i)
        return [self._pool(found) for found in wanted.values() if found]

    def _pool(self, found: list[int]) -> Pool:
        nodes = np.array(found, dtype=np.int64)
        contiguous = len(found) == found[-1] - found[0] + 1
        leaf, leaves = renumber(self.leaf[nodes])
        spine, spines = renumber(self.spine[nodes])
        superpod, superpods = renumber(self.superpod[nodes])
        return Pool(
            kind=self.nodes[found[0]].kind,
            index=slice(found[0], found[-1] + 1) if contiguous else nodes,
            nodes=nodes,
            leaf=leaf,
            spine=spine,
            superpod=superpod,
            leaves=leaves,
            spines=spines,
            superpods=superpods,
            node_cards=max(self.nodes[i].kind.cards for i in found),
            sizes=count_sizes([self.nodes[i] for i in found]),
            one_kind=len({self.nodes[i].kind.name for i in found}) == 1,
        )

    def renew(self) -> None:
        """Something has changed: what was counted before does not hold."""
        self._last += 1
        self.version = self._last

    def snapshot(self) -> tuple[Ints, ...]:
        """Copies of everything that `take` and `give` change."""
        arrays = (self.idle, self.free, self.share, self.cpu, self.memory, self.leaf_free)
        return (*(array.copy() for array in arrays), np.array(self.kind_free))


def count_sizes(nodes: Sequence[Node]) -> tuple[tuple[int, int, int], ...]:
    """Sizes of empty nodes (thousandths of a core, MiB), each with its number of nodes."""
    sizes = Counter(
        (node.cpu_milli + node.elsewhere[0], node.memory_mib + node.elsewhere[1]) for node in nodes
    )
    return tuple((cpu, memory, number) for (cpu, memory), number in sizes.items())


def codes(names: list[str]) -> Ints:
    """Numbers for names, from 0 in order of appearance; -1 for the empty name."""
    known: dict[str, int] = {}
    return np.array(
        [known.setdefault(name, len(known)) if name else -1 for name in names], dtype=np.int64
    )


def renumber(domain: Ints) -> tuple[Ints, int]:
    """Domains numbered from 0 inside a pool (-1 stays), and how many there are."""
    unique, inverse = np.unique(domain, return_inverse=True)
    if len(unique) and unique[0] == -1:
        return inverse.astype(np.int64) - 1, len(unique) - 1
    return inverse.astype(np.int64), len(unique)
