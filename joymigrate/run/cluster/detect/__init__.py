"""What a node has: cards, links, NUMA and health, read from the output of its own tools.

A reader turns text into a `LinkTable` or raises `JoyError`; `node` puts the tables together. Every
tool's output can be given as a file, recorded elsewhere, instead of being run. What no tool tells
is not claimed: the node then gets a kind without rings and a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.inventory import Node

Matrix = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LinkTable:
    """A link table: `links[a][b]` names how cards a and b reach each other ("X" for itself).

    `affinity` are the CPU ranges beside each card, as written; `ids` the physical ids.
    """

    ids: tuple[int, ...]
    links: Matrix
    affinity: tuple[str, ...]
    note: str = ""


def groups(table: LinkTable, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Sets of at least two cards connected over links named `names`."""
    left = set(table.ids)
    place = {card: row for row, card in enumerate(table.ids)}
    found: list[tuple[int, ...]] = []
    while left:
        reached, todo = set(), {min(left)}
        while todo:
            card = todo.pop()
            reached.add(card)
            row = table.links[place[card]]
            near = {b for b in table.ids if is_link(row[place[b]], names)}
            todo |= near - reached
        left -= reached
        found.append(tuple(sorted(reached)))
    return tuple(group for group in found if len(group) > 1)


def is_link(link: str, names: Sequence[str]) -> bool:
    """Whether a table entry is one of the named links; `NV` means NV1, NV12, …"""
    return any(link == name or re.fullmatch(rf"{name}\d+", link) is not None for name in names)


def numa_of_cpus(text: str, cpus: Mapping[int, int]) -> int | None:
    """NUMA node of the first CPU of a range like `96-119,288-311`; None when it is not known."""
    match = re.match(r"\s*(\d+)", text)
    return cpus.get(int(match.group(1))) if match else None


def numa_groups(table: LinkTable, cpus: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """Cards per NUMA node, from the CPU ranges beside them; nothing when one is unknown.

    Without a CPU table, cards of one range are one group: which node it is does not matter.
    """
    keys: dict[object, list[int]] = {}
    for card, text in zip(table.ids, table.affinity, strict=True):
        if not text or text in ("NA", "N/A"):
            return ()
        node = numa_of_cpus(text, cpus) if cpus else text
        if node is None:
            return ()
        keys.setdefault(node, []).append(card)
    return tuple(tuple(sorted(ids)) for ids in keys.values()) if len(keys) > 1 else ()


def plain_node(
    host: str, family: str, count: int, numa: tuple[tuple[int, ...], ...] = ()
) -> Node | None:
    """A node of cards whose links are unknown: the family's kind of this size without groups."""
    plain = [kind for kind in kinds.all_kinds().values() if kind.family == family]
    plain = [kind for kind in plain if kind.cards >= count and not kind.groups]
    if not plain:
        return None
    kind = min(plain, key=lambda one: one.cards)
    gone = tuple(range(count, kind.cards))
    return Node(host, kind, count, unhealthy=gone, absent=gone, numa=numa)
