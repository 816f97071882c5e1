"""Server kinds as data: `topology.yaml` of every chip folder, turned into `Kind` objects.

A kind says how many cards a node has, which of them are linked, and which requests are legal.
Nothing is ever concluded from a name: a kind without `groups` claims no ring.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate import chips
from joymigrate.errors import JoyError, did_you_mean

RULES = ("count", "rings", "modules", "blocks")
MAX_CARDS = 16
KNOWN_KEYS = [
    "name",
    "title",
    "cards",
    "rule",
    "groups",
    "legal",
    "prefer",
    "cross",
    "cross_gang",
    "alone",
    "share",
    "health_weight",
    "tightness_weight",
    "superpod",
    "kubernetes",
]


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of server.

    `groups` are the linked sets of card ids (rings, modules or meshes, as `rule` says). `prefer`
    maps a request to the numbers of free cards in a ring, best first. `cross` says how a request
    larger than a ring is laid over two rings; `cross_gang` the same for jobs of several pods.
    `alone` lists requests that only a job of one pod may make. `share`: a card can be split.
    """

    name: str
    title: str
    family: str  # "gpu", …: what quotas and drivers call this type of card
    chip: str
    cards: int
    rule: str = "count"
    groups: tuple[tuple[int, ...], ...] = ()
    legal: tuple[int, ...] = ()
    prefer: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    cross: str = ""
    cross_gang: str = ""
    alone: tuple[int, ...] = ()
    share: bool = False
    health_weight: int = 0
    tightness_weight: int = 1
    superpod_size: int = 0
    superpod_reserve: int = 0
    ray_resource: str = ""
    visible: str = ""
    kubernetes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> tuple[Any, ...]:
        """What decides the choice of cards inside a node; kinds of one layout share tables."""
        if self.rule == "count":
            # A smaller server is a larger one with some cards missing.
            width = 8 if self.cards <= 8 else MAX_CARDS
            return ("count", width, self.health_weight, self.tightness_weight)
        return (
            self.rule,
            self.cards,
            self.groups,
            self.legal,
            tuple(sorted(self.prefer.items())),
            self.cross,
            self.cross_gang,
            self.health_weight,
            self.tightness_weight,
        )


@functools.cache
def all_kinds() -> dict[str, Kind]:
    """Every known kind by name, from all chip folders."""
    found: dict[str, Kind] = {
        "cpu": Kind("cpu", "server without accelerators", "cpu", "", 0, legal=(0,))
    }
    for chip in chips.all_chips().values():
        path = chip.folder / "topology.yaml"
        if path.is_file():
            for kind in read_kinds(path, chip.name):
                if kind.name in found:
                    raise JoyError(f"two kinds are called '{kind.name}'", where=str(path))
                found[kind.name] = kind
    return found


def get(name: str, where: str | None = None) -> Kind:
    """The kind of this name; an unknown one raises `JoyError` with the nearest name."""
    kinds = all_kinds()
    if name in kinds:
        return kinds[name]
    raise JoyError(
        f"unknown server kind '{name}'.{did_you_mean(name, kinds)}",
        where=where,
        help=f"known kinds: {', '.join(sorted(kinds))}",
    )


def read_kinds(path: Path, chip: str) -> Iterator[Kind]:
    """The kinds of one topology.yaml; `gpu-{cards}` with a list of counts makes one kind each."""
    raw = chips.read_yaml(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("kinds"), list):
        raise JoyError("a topology file has a list `kinds`", where=str(path))
    ray = raw.get("ray") or {}
    for item in raw["kinds"]:
        for key in item:
            if key not in KNOWN_KEYS:
                raise JoyError(
                    f"unknown key '{key}' of kind {item.get('name')}."
                    f"{did_you_mean(str(key), KNOWN_KEYS)}",
                    where=str(path),
                    help="see docs/cluster.md for the keys of a server kind",
                )
        counts = item["cards"] if isinstance(item["cards"], list) else [item["cards"]]
        for cards in counts:
            yield make_kind(item, int(cards), str(raw.get("family", chip)), chip, ray, path)


def make_kind(
    item: Mapping[str, Any],
    cards: int,
    family: str,
    chip: str,
    ray: Mapping[str, str],
    path: Path,
) -> Kind:
    """One kind with `cards` cards; wrong data raises `JoyError` naming file and kind."""
    name = str(item["name"]).replace("{cards}", str(cards))
    rule = str(item.get("rule", "count"))
    groups = tuple(tuple(int(card) for card in group) for group in item.get("groups") or ())
    superpod = item.get("superpod") or {}
    if rule not in RULES or not 0 < cards <= MAX_CARDS:
        raise JoyError(
            f"kind {name}: rule '{rule}' with {cards} cards",
            where=str(path),
            help=f"rules: {', '.join(RULES)}; 1 to {MAX_CARDS} cards",
        )
    if rule != "count" and sorted(card for group in groups for card in group) != [*range(cards)]:
        raise JoyError(f"kind {name}: `groups` must name every card once", where=str(path))
    return Kind(
        name=name,
        title=str(item.get("title", name)),
        family=family,
        chip=chip,
        cards=cards,
        rule=rule,
        groups=groups,
        legal=tuple(item.get("legal") or range(1, cards + 1)),
        prefer={int(k): tuple(v) for k, v in (item.get("prefer") or {}).items()},
        cross=str(item.get("cross", "")),
        cross_gang=str(item.get("cross_gang", item.get("cross", ""))),
        alone=tuple(item.get("alone") or ()),
        share=bool(item.get("share", False)),
        health_weight=int(item.get("health_weight", 0)),
        tightness_weight=int(item.get("tightness_weight", 1)),
        superpod_size=int(superpod.get("size", 0)),
        superpod_reserve=int(superpod.get("reserve", 0)),
        ray_resource=str(ray.get("resource", "")),
        visible=str(ray.get("visible", "")),
        kubernetes=item.get("kubernetes") or {},
    )
