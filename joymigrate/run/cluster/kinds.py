"""Server kinds as data: `topology.yaml` of every chip folder, turned into `ServerKind` objects.

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
from joymigrate.schema import document, read_file, setting

RULES = ("count", "rings", "modules", "blocks")
MAX_CARDS = 16
HELP = "see docs/how-to/cluster.md for the keys of a server kind"


@dataclass(frozen=True, slots=True)
class Superpod:
    """Sizes of a super-pod, in servers."""

    size: int = setting(0, "servers of one super-pod", least=0)
    reserve: int = setting(0, "servers of it that stay free for a failure", least=0)


@dataclass(frozen=True, slots=True)
class KindItem:
    """One server kind as its file says it; a list of `cards` makes one kind each."""

    name: str = setting(help="its name; {cards} stands for the number of cards", words=True)
    cards: int | tuple[int, ...] = setting(help="cards of a server", least=1, most=MAX_CARDS)
    title: str = setting("", "what people call it")
    rule: str = setting("count", "how its cards are linked", choices=RULES)
    groups: tuple[tuple[int, ...], ...] = setting((), "linked sets of card ids")
    legal: tuple[int, ...] = setting((), "requests that are legal (default: all)")
    prefer: Mapping[int, tuple[int, ...]] = setting(
        make=dict, help="free cards of a ring, best first, for each request"
    )
    cross: str = setting("", "how a request larger than a ring is laid over two")
    cross_gang: str | None = setting(None, "the same for jobs of several pods (default: cross)")
    alone: tuple[int, ...] = setting((), "requests that only a job of one pod may make")
    share: bool = setting(False, "whether a card can be split")
    health_weight: int = setting(0, "what a sick card costs in the choice")
    tightness_weight: int = setting(1, "what a card left over costs in the choice")
    superpod: Superpod = setting(make=Superpod, help="servers that one fabric joins")
    kubernetes: Mapping[str, Any] = setting(make=dict, help="resource, labels and policy there")

    def __post_init__(self) -> None:
        every = sorted(card for group in self.groups for card in group)
        if self.rule != "count" and every != [*range(max(self.counts))]:
            raise JoyError(f"kind {self.name}: `groups` must name every card once", where="groups")

    @property
    def counts(self) -> tuple[int, ...]:
        """Every number of cards that the kind comes with."""
        return self.cards if isinstance(self.cards, tuple) else (self.cards,)


@dataclass(frozen=True, slots=True)
class Ray:
    """What Ray calls these cards."""

    resource: str = setting("", "Ray's resource")
    visible: str = setting("", "the variable that names a worker's cards")


@document("topology", "A chip's server kinds: `topology.yaml` in its folder.")
@dataclass(frozen=True, slots=True)
class Topology:
    """The server kinds of one chip."""

    kinds: tuple[KindItem, ...] = setting(help="a topology file has a list `kinds`")
    family: str | None = setting(None, "what quotas and drivers call these cards")
    ray: Ray = setting(make=Ray, help="Ray's names")
    links: Mapping[str, tuple[str, ...]] = setting(
        make=dict, help="what the driver calls the links inside a ring or module"
    )


@dataclass(frozen=True, slots=True, eq=False)
class ServerKind:
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
def all_kinds() -> dict[str, ServerKind]:
    """Every known kind by name, from all chip folders."""
    found: dict[str, ServerKind] = {
        "cpu": ServerKind("cpu", "server without accelerators", "cpu", "", 0, legal=(0,))
    }
    for chip in chips.all_chips().values():
        path = chip.folder / "topology.yaml"
        if path.is_file():
            for kind in read_kinds(path, chip.name):
                if kind.name in found:
                    raise JoyError(f"two kinds are called '{kind.name}'", where=str(path))
                found[kind.name] = kind
    return found


def get(name: str, where: str | None = None) -> ServerKind:
    """The kind of this name; an unknown one raises `JoyError` with the nearest name."""
    kinds = all_kinds()
    if name in kinds:
        return kinds[name]
    raise JoyError(
        f"unknown server kind '{name}'.{did_you_mean(name, kinds)}",
        where=where,
        help=f"known kinds: {', '.join(sorted(kinds))}",
    )


def read_kinds(path: Path, chip: str) -> Iterator[ServerKind]:
    """The kinds of one topology.yaml; `gpu-{cards}` with a list of counts makes one kind each."""
    document = read_file(Topology, path, "topology", HELP)
    for item in document.kinds:
        for cards in item.counts:
            yield make_kind(item, cards, document, chip)


def make_kind(item: KindItem, cards: int, document: Topology, chip: str) -> ServerKind:
    """One kind with `cards` cards."""
    name = item.name.replace("{cards}", str(cards))
    return ServerKind(
        name=name,
        title=item.title or name,
        family=document.family or chip,
        chip=chip,
        cards=cards,
        rule=item.rule,
        groups=item.groups,
        legal=item.legal or tuple(range(1, cards + 1)),
        prefer=item.prefer,
        cross=item.cross,
        cross_gang=item.cross if item.cross_gang is None else item.cross_gang,
        alone=item.alone,
        share=item.share,
        health_weight=item.health_weight,
        tightness_weight=item.tightness_weight,
        superpod_size=item.superpod.size,
        superpod_reserve=item.superpod.reserve,
        ray_resource=document.ray.resource,
        visible=document.ray.visible,
        kubernetes=item.kubernetes,
    )
