"""Which cards of a node a pod gets: one lookup table per (layout, request), over all free masks.

A mask has bit i set where card i is free. Tables are numpy arrays indexed by the mask, so that one
fancy index answers for a whole cluster. They are built when first asked for.

Rules (the data of a kind says which, and with which groups):
- `count`:   any free cards, lowest ids.
- `rings`:   a request up to a ring's size lies in one ring; `prefer` orders the rings by how many
             free cards they have, ring 0 before ring 1 at each count, lowest ids inside. A larger
             one takes half of each ring (`pairs`: the same positions), or the whole node.
- `modules`: whole modules only; one card alone takes the fewest-free module.
- `blocks`:  a request below a mesh lies in one; a multiple of the mesh takes full meshes; any
             other count has no affinity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.kinds import ServerKind

Masks = NDArray[np.int64]
WIDTH = 16  # cards of the largest node
IMPOSSIBLE = 1 << 20  # a cost no possible choice reaches


@dataclass(frozen=True, slots=True)
class CardChoice:
    """Tables over all masks for one request: `select` (0 where impossible), `cost`, `fits`.

    `cost` ranks nodes as the kind's own scheduler does (lower is better, without the node's
    health): tightness of the chosen group first, then fewer free cards. `fits` is how many pods of
    this request go into the mask one after another.
    """

    select: Masks
    cost: Masks
    fits: Masks


def bits(ids: tuple[int, ...] | list[int]) -> int:
    """The mask of these card ids."""
    mask = 0
    for card in ids:
        mask |= 1 << card
    return mask


def ids(mask: int) -> list[int]:
    """The card ids of this mask, ascending."""
    return [card for card in range(mask.bit_length()) if mask >> card & 1]


def count(masks: Masks) -> Masks:
    """Number of set bits of each 16-bit mask."""
    return POPCOUNT[masks]


def lowest(masks: Masks, k: int, width: int = 16) -> Masks:
    """The `k` lowest set bits of each mask; masks with fewer give all they have."""
    out = np.zeros_like(masks)
    left = np.full(masks.shape, k, dtype=np.int64)
    for card in range(width):
        use = (masks >> card & 1) & (left > 0)
        out |= use << card
        left -= use
    return out


def _popcount_table() -> Masks:
    values = np.arange(1 << 16, dtype=np.int64)
    return sum(((values >> card) & 1 for card in range(16)), np.zeros_like(values))


POPCOUNT = _popcount_table()


_TABLES: dict[tuple[object, ...], CardChoice] = {}


def choice(kind: ServerKind, k: int, gang: bool) -> CardChoice:
    """The tables for `k` cards on this kind; `gang` when the job has more than one pod.

    Kinds of one layout share them.
    """
    if not k:  # pods without cards go to nodes of any width
        key: tuple[object, ...] = ("none",)
        width = WIDTH
    else:
        key = (kind.layout, k, gang and bool(kind.cross))
        width = int(kind.layout[1])
    if key not in _TABLES:
        _TABLES[key] = _build(kind, width, k, gang)
    return _TABLES[key]


def _build(kind: ServerKind, width: int, k: int, gang: bool) -> CardChoice:
    masks = np.arange(1 << width, dtype=np.int64)
    if k == 0:
        zeros = np.zeros_like(masks)
        return CardChoice(zeros, zeros, zeros + (1 << 30))
    if kind.rule == "count":
        select, unfit = np.where(count(masks) >= k, lowest(masks, k), 0), masks * 0
    else:
        select, unfit = RULES[kind.rule](kind, k, masks, gang)
    cost = np.where(select > 0, unfit * kind.tightness_weight + count(masks), IMPOSSIBLE)
    return CardChoice(select, cost, _fits(masks, select))


def _fits(masks: Masks, select: Masks) -> Masks:
    """How many times `select` succeeds in each mask when its cards are taken away every time."""
    left, pods = masks.copy(), np.zeros_like(masks)
    while True:
        chosen = select[left]
        if not chosen.any():
            return pods
        pods += chosen > 0
        left &= ~chosen


def _rings(kind: ServerKind, k: int, masks: Masks, gang: bool) -> tuple[Masks, Masks]:
    select, unfit = np.zeros_like(masks), np.zeros_like(masks)
    rings = [bits(ring) for ring in kind.groups]
    size = len(kind.groups[0])
    if k == kind.cards:
        whole = (1 << kind.cards) - 1
        return np.where(masks == whole, whole, 0), unfit
    if k <= size:
        for rank, free in enumerate(kind.prefer.get(k, range(k, size + 1))):
            for ring in rings:
                hit = (select == 0) & (count(masks & ring) == free)
                select = np.where(hit, lowest(masks & ring, k), select)
                unfit = np.where(hit, rank, unfit)
        return select, unfit
    half = k // 2
    if not kind.cross or len(rings) != 2 or k % 2:
        return select, unfit
    left, right = masks & rings[0], (masks & rings[1]) >> size
    if (kind.cross_gang if gang else kind.cross) == "pairs":
        left = right = left & right
    usable = np.minimum(count(left), count(right))
    both = lowest(left, half) | lowest(right, half) << size
    return np.where(usable >= half, both, 0), np.maximum(usable - half, 0)


def _modules(kind: ServerKind, k: int, masks: Masks, gang: bool) -> tuple[Masks, Masks]:
    modules = [bits(module) for module in kind.groups]
    size = len(kind.groups[0])
    whole, broken = np.zeros_like(masks), np.zeros_like(masks)
    for module in modules:
        whole |= np.where(masks & module == module, module, 0)
    free = count(masks)
    if k == 1:
        broken = masks & ~whole
        select = np.where(broken > 0, lowest(broken, 1), lowest(masks, 1))
        # Breaking a module is worse than any tightness, which costs less than two nodes' cards.
        return select, free - k + np.where(broken > 0, 0, 2 * kind.cards)
    if k % size:
        return np.zeros_like(masks), np.zeros_like(masks)
    return np.where(count(whole) >= k, lowest(whole, k), 0), np.maximum(free - k, 0)


def _blocks(kind: ServerKind, k: int, masks: Masks, gang: bool) -> tuple[Masks, Masks]:
    meshes = [bits(mesh) for mesh in kind.groups]
    size = len(kind.groups[0])
    select, unfit = np.zeros_like(masks), np.zeros_like(masks)
    if k < size:
        for want in range(k, size + 1):
            for mesh in meshes:
                hit = (select == 0) & (count(masks & mesh) == want)
                select = np.where(hit, lowest(masks & mesh, k), select)
                unfit = np.where(hit, want - k, unfit)
        return select, unfit
    usable = masks
    if k % size == 0:
        usable = np.zeros_like(masks)
        for mesh in meshes:
            usable |= np.where(masks & mesh == mesh, mesh, 0)
    free = count(usable)
    return np.where(free >= k, lowest(usable, k), 0), np.maximum(free - k, 0)


RULES = {"rings": _rings, "modules": _modules, "blocks": _blocks}
