"""Reservations by calendar: cards that belong to a queue, or to nobody, for a window of time.

A job that is not the window's may have its cards only if it states that it ends before the window
begins (`minutes`, or its time limit), or when the window is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster import cards
from joymigrate.run.cluster.allocations import Allocations
from joymigrate.run.cluster.calendar import ReservationItem
from joymigrate.run.cluster.fits import BARRED
from joymigrate.run.cluster.inventory import Node
from joymigrate.run.cluster.jobs import Job, PodAllocation
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.reasons import Refusal
from joymigrate.run.cluster.state import Ints, State


@dataclass(frozen=True, slots=True)
class Booking:
    """Cards for the jobs of `queue` ("": nobody's) from `begin` until `end`, in seconds."""

    name: str
    cards: tuple[PodAllocation, ...]
    begin: float
    end: float
    queue: str = ""
    why: str = ""


@dataclass(slots=True, eq=False)
class BookedCards:
    """A booking on the nodes that are there: its cards as one mask per node."""

    booking: Booking
    mask: Ints

    def bars(self, job: Job, at: float) -> bool:
        """Whether a job that starts `at` (seconds) must leave these cards alone."""
        one = self.booking
        if at >= one.end or (one.queue and one.queue == job.queue):
            return False
        return job.minutes is None or at + job.minutes * 60 > one.begin

    def open_to(self, job: Job, at: float) -> bool:
        """Whether these cards wait for such jobs at this moment."""
        one = self.booking
        return one.begin <= at < one.end and bool(one.queue) and one.queue == job.queue


def bookings_of(items: Sequence[ReservationItem], nodes: Sequence[Node]) -> list[Booking]:
    """The windows of a jobs file's reservations; `JoyError` for unknown nodes and double ones."""
    widths = {node.name: node.kind.cards for node in nodes}
    found: list[Booking] = []
    for item in items:
        for node in item.nodes:
            if node not in widths:
                raise JoyError(
                    f"reservation {item.name}: no node '{node}'.{did_you_mean(node, widths)}",
                    help="nodes are those of the inventory",
                )
        whole = tuple(PodAllocation(node, tuple(range(widths[node]))) for node in item.nodes)
        for name, begin, end in item.windows:
            for other in found:
                both = {part.node for part in other.cards} & {*item.nodes}
                if both and other.begin < end and begin < other.end:
                    raise JoyError(
                        f"node {min(both)} is reserved twice at one time: {other.name}, {name}",
                        help="another time, or other nodes",
                    )
            found.append(Booking(name, whole, begin, end, item.queue))
    return found


def on_nodes(booking: Booking, state: State) -> BookedCards:
    """A booking's cards as masks; nodes that are away are left out."""
    mask: Ints = np.zeros(len(state.nodes), dtype=np.int64)
    for part in booking.cards:
        if part.node not in state.number:
            continue
        number = state.number[part.node]
        mask[number] |= cards.bits(list(part.cards))
        if int(mask[number]) & int(state.present[number]) == int(state.present[number]):
            mask[number] = BARRED  # all of it: pods without cards stay away too
    return BookedCards(booking, mask)


def bar_cards(booked: Iterable[BookedCards], job: Job, at: float) -> Ints | None:
    """The cards that a job which starts `at` must leave alone; None where there are none."""
    masks = [one.mask for one in booked if one.bars(job, at)]
    return np.bitwise_or.reduce(masks) if masks else None


def has_passed(booked: Iterable[BookedCards], before: float, now: float) -> bool:
    """Whether a window has begun or ended since `before`."""
    return any(
        before < time <= now for one in booked for time in (one.booking.begin, one.booking.end)
    )


def in_the_way(
    booked: Iterable[BookedCards],
    running: Mapping[str, tuple[Job, Sequence[tuple[int, int]]]],
    now: float,
) -> dict[str, str]:
    """Running jobs on the cards of windows that have begun and are not theirs: name → window.

    `running` holds each job with its nodes and masks.
    """  # fmt: skip
    live = [one for one in booked if one.booking.begin <= now < one.booking.end]
    return {
        name: one.booking.name
        for name, (job, grants) in running.items()
        for one in live
        if not (one.booking.queue and one.booking.queue == job.queue)
        and any(one.mask[node] == BARRED or int(one.mask[node]) & mask for node, mask in grants)
    }


def choose(
    state: State,
    holdings: Allocations,
    placer: Placer,
    shape: Job,
    booked: Sequence[BookedCards],
    windows: Sequence[tuple[float, float]],
    anyway: bool = False,
) -> tuple[PodAllocation, ...] | Refusal:
    """Cards of this shape that nobody else has booked in the windows and whose jobs end before.

    The first window comes first. Jobs without a stated end are taken to run on; with `anyway` no
    job is in the way. The state is left as it was.
    """
    others = [
        one.mask
        for one in booked
        if any(one.booking.begin < end and begin < one.booking.end for begin, end in windows)
    ]
    taken = np.bitwise_or.reduce(others) if others else None
    gone = holdings.live & ((holdings.ends <= windows[0][0]) | anyway)
    with holdings.without(state, gone):
        placed = placer.place(shape, taken)
    if isinstance(placed, Refusal):
        return placed
    found: dict[int, int] = {}
    for grant in placed:
        found[grant.node] = found.get(grant.node, 0) | grant.mask
    return tuple(
        PodAllocation(state.nodes[node].name, tuple(cards.ids(mask)))
        for node, mask in sorted(found.items())
    )
