"""Ray's nodes as an inventory: kind, leaf and super-pod from labels, cards from resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.inventory import Inventory, Node
from joymigrate.run.cluster.kinds import ServerKind

LABEL = "joymigrate/"


def inventory(found: Sequence[Mapping[str, Any]]) -> tuple[Inventory, dict[str, str]]:
    """Nodes of `ray.nodes()` that are alive, and the Ray id behind each name."""
    nodes: list[Node] = []
    ids: dict[str, str] = {}
    warnings: list[str] = []
    for item in found:
        if not item.get("Alive", item.get("alive")):
            continue
        labels = dict(item.get("Labels") or {})
        name = labels.get(f"{LABEL}name") or f"ray-{item['NodeID'][:12]}"
        if name in ids:  # until Ray calls the old one dead, where a node was started anew
            warnings.append(f"{name}: two nodes have this name, one is left out")
            continue
        kind, cards = kind_of(labels, item.get("Resources") or {}, name, warnings)
        nodes.append(
            Node(
                name=name,
                kind=kind,
                cards=cards,
                unhealthy=tuple(range(cards, kind.cards)),
                absent=tuple(range(cards, kind.cards)),
                leaf=labels.get(f"{LABEL}leaf", ""),
                spine=labels.get(f"{LABEL}spine", ""),
                superpod=labels.get(f"{LABEL}superpod", ""),
                model=labels.get("ray.io/accelerator-type", ""),
                cpu_milli=int(float((item.get("Resources") or {}).get("CPU", 0)) * 1000),
                address=str(item.get("NodeManagerAddress", "")),
            )
        )
        ids[name] = str(item["NodeID"])
    return Inventory(tuple(nodes), tuple(warnings)), ids


def kind_of(
    labels: Mapping[str, str], resources: Mapping[str, float], name: str, warnings: list[str]
) -> tuple[ServerKind, int]:
    """The kind that a node's label names, else a plain one of its size: no ring is claimed.

    One node's wrong label is a warning: it must not stop the jobs on all the others.
    """
    named = labels.get(f"{LABEL}kind")
    if named:
        try:
            kind = kinds.get(named, f"label {LABEL}kind of Ray node {name}")
            return kind, min(kind.cards, int(resources.get(kind.ray_resource, kind.cards)))
        except JoyError as error:
            warnings.append(f"{name}: {error.what}")
    for kind in sorted(kinds.all_kinds().values(), key=lambda one: one.cards):
        count = int(resources.get(kind.ray_resource, 0)) if kind.ray_resource else 0
        if count and kind.cards >= count and not kind.groups:
            if not named:
                warnings.append(f"{name}: no label {LABEL}kind, no ring is claimed")
            return kind, count
    return kinds.get("cpu"), 0
