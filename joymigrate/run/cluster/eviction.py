"""Which running gangs to stop for a waiting job: the cheapest set that lets it start, or none.

Whole gangs only. A set counts only when the waiting job's own placement is found with it gone, so
nothing is ever stopped for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.state import Placement, masks_of

Try = Callable[[Sequence["Victim"]], "Placement | None"]
NODES_TRIED = 16  # cheapest nodes that are looked at for a one-node claim


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """A running job that may be stopped, or one pod that it may lose: what it holds and costs."""

    job: GangJob
    placement: Placement
    started: float
    cards: float

    @property
    def cost(self) -> tuple[int, float, float]:
        """Lower priority first, then fewer cards, then the latest start (least work lost)."""
        return (self.job.priority, self.cards, -self.started)


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """The victims (none where there is room without) and the placement that is then possible."""

    victims: tuple[Victim, ...]
    placement: Placement

    @property
    def cost(self) -> tuple[int, float, float]:
        """Highest priority stopped, cards stopped, and how recent the oldest of them is."""
        return (
            max(victim.job.priority for victim in self.victims),
            sum(victim.cards for victim in self.victims),
            -min(victim.started for victim in self.victims),
        )


def search(candidates: Sequence[Victim], attempt: Try) -> EvictionPlan | None:
    """The cheapest deal found, or None when even all candidates together do not help.

    `attempt(victims)` is the claim's placement with these victims gone, or None.
    """
    if not candidates:
        return None
    room = attempt(())
    if room is not None:
        return EvictionPlan((), room)
    if attempt(candidates) is None:
        return None
    newest = sorted(candidates, key=lambda v: (v.job.priority, -v.started))
    smallest = sorted(candidates, key=lambda v: v.cost)
    largest = sorted(candidates, key=lambda v: (v.job.priority, -v.cards, -v.started))
    deals = [shorten(order, attempt) for order in (newest, smallest, largest)]
    deals += [shorten(order, attempt) for order in by_node(candidates, attempt)]
    return min((deal for deal in deals if deal), key=lambda deal: deal.cost, default=None)


def by_node(candidates: Sequence[Victim], attempt: Try) -> list[list[Victim]]:
    """Orders that empty one node (or leaf neighbour) after the other, cheapest nodes first."""
    on: dict[int, list[Victim]] = {}
    for victim in candidates:
        for node in {grant.node for grant in victim.placement}:
            on.setdefault(node, []).append(victim)

    def price(node: int) -> tuple[int, float]:
        return (
            max(victim.job.priority for victim in on[node]),
            sum(victim.cards for victim in on[node]),
        )

    nodes = sorted(on, key=price)[:NODES_TRIED]
    alone = [sorted(on[node], key=lambda v: v.cost) for node in nodes]
    alone = [order for order in alone if attempt(order) is not None]
    chained: list[Victim] = []
    for node in sorted(on, key=price):
        chained += [victim for victim in on[node] if victim not in chained]
    return [*alone, chained]


def shorten(order: Sequence[Victim], attempt: Try) -> EvictionPlan | None:
    """The shortest prefix that works, reduced to the victims that are really in the way."""
    low, high = 1, len(order)
    if not order or attempt(order) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        if attempt(order[:middle]) is None:
            low = middle + 1
        else:
            high = middle
    kept = list(order[:low])
    placement = attempt(kept)
    if placement is None:
        return None
    touching = [victim for victim in kept if overlaps(victim.placement, placement)]
    if touching and len(touching) < len(kept):
        reduced = attempt(touching)
        if reduced is not None:
            kept, placement = touching, reduced
    for victim in sorted(kept, key=lambda v: (-v.cards, v.started)):
        rest = [other for other in kept if other is not victim]
        reduced = attempt(rest) if rest else None
        if reduced is not None:
            kept, placement = rest, reduced
    return EvictionPlan(tuple(kept), placement)


def overlaps(one: Placement, other: Placement) -> bool:
    """Whether two placements share a card."""
    masks = masks_of(one)
    return any(masks.get(grant.node, 0) & grant.mask for grant in other)
