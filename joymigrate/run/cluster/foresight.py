"""When a waiting job starts, and what must happen for it: found by running the scheduler on it.

A copy of the scheduler lives through the stated ends of the running jobs, one after the other. What
it starts on the way is the estimate; the ends that a job's start needs are then tried alone, on
another copy, and only what has led to a start there is said.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.entries import NEVER, RunningJob
from joymigrate.run.cluster.events import Action, ClusterTick, Ended, Event, NodeBack, Start
from joymigrate.run.cluster.place import NO_ROOM
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.state import Placement, masks_of

MOMENTS = 2000  # moments of one look ahead
ROUNDS = 20  # times that all that runs is thought away
TRIES = 64  # tries to leave out ends that are not needed
Ends = Sequence[tuple[str, "float | None"]]  # a job, and the time of its end in seconds
Course = tuple[Ends, list[str]]  # the ends before a job's start, and who starts before it


@dataclass(frozen=True, slots=True)
class Enough:
    """What lets a job start: these jobs end, in this order; others may start on the way.

    `ends` are names and seconds from now, None where nobody knows; `starts` those that start before
    it. `heals` names nodes whose cards must be taken into use again.
    """

    ends: tuple[tuple[str, float | None], ...] = ()
    starts: tuple[str, ...] = ()
    heals: tuple[str, ...] = ()


@dataclass(slots=True)
class Outlook:
    """A look ahead: when each job starts, after which ends and which other starts."""

    now: float
    moments: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    started: dict[str, tuple[float, int]] = field(default_factory=dict)  # when, after how many
    placed: dict[str, Placement] = field(default_factory=dict)
    unstated: tuple[str, ...] = ()  # running jobs whose end nobody knows
    overdue: tuple[str, ...] = ()  # those that run longer than they said
    predicted: int = 0  # running jobs that state no end, and whose like has run before
    cut: bool = False  # it went on for too long and was broken off


@dataclass(frozen=True, slots=True)
class Foresight:
    """A waiting job's start: in how many seconds, on what basis, and what is enough for it."""

    in_s: float | None
    basis: str
    enough: Enough | None


def look_ahead(scheduler: Scheduler, now: float) -> Outlook:
    """Let all stated ends come, in a copy; nothing new is submitted."""
    twin = clone(scheduler)
    outlook = Outlook(now)
    running = scheduler.running.values()
    ends = {run.entry.job.name: end_of(run) for run in running}
    outlook.unstated = tuple(name for name, end in ends.items() if end == NEVER)
    outlook.overdue = tuple(name for name, end in ends.items() if end < now)
    outlook.predicted = sum(run.expected < run.ends for run in running)
    due = [(max(end, now), name) for name, end in ends.items() if end < NEVER]
    heapq.heapify(due)
    note(outlook, twin.on(ClusterTick(now)), twin, due, now)
    while due and (twin.waiting or twin.gate.entries or not outlook.moments):
        if len(outlook.moments) >= MOMENTS:
            outlook.cut = True
            break
        at = due[0][0]
        names: list[str] = []
        while due and due[0][0] == at:
            _, name = heapq.heappop(due)
            run = twin.running.get(name)
            if run is not None and max(end_of(run), now) == at and name not in names:
                names.append(name)
        if names:
            outlook.moments.append((at, tuple(names)))
            actions = twin.on_all([Ended(name, at) for name in names])
            note(outlook, actions, twin, due, at)
    return outlook


def note(
    outlook: Outlook,
    actions: Iterable[Action],
    twin: Scheduler,
    due: list[tuple[float, str]],
    at: float,
) -> None:
    """Write down what has started, and when it will end."""
    for action in actions:
        if not isinstance(action, Start):
            continue
        name = action.job.name
        run = twin.running.get(name)
        if run is None:
            continue  # stopped again at once
        if name not in outlook.started:
            outlook.started[name] = (at, len(outlook.moments))
            outlook.placed[name] = action.placement
        if run.expected < NEVER:
            heapq.heappush(due, (run.expected, name))


def end_of(run: RunningJob) -> float:
    """When a job ends, as a look ahead takes it; one that says when and runs on is late."""
    return min(run.ends, run.expected)


def foresee(
    scheduler: Scheduler, name: str, now: float, outlook: Outlook | None = None
) -> Foresight:
    """When a waiting job starts and what is enough for it. Every `enough` has been tried."""
    known = outlook or look_ahead(scheduler, now)
    if name in known.started:
        at, before = known.started[name]
        enough = shortest(scheduler, name, known, ends_of(known.moments[:before]))
        return Foresight(at - now, basis_of(known), enough)
    if known.cut:
        return Foresight(None, f"not within the next {MOMENTS} ends", None)
    at_once: Ends = [(one, None) for one in scheduler.running]
    for ends in (empty_cluster(scheduler, name, known), at_once):
        enough = shortest(scheduler, name, known, ends) if ends else None
        if enough is not None:
            return Foresight(None, "jobs must end earlier than they say, or say no end", enough)
    return Foresight(None, "no end of a running job is enough", heal_nodes(scheduler, name, now))


def ends_of(
    moments: Sequence[tuple[float, tuple[str, ...]]],
) -> list[tuple[str, float | None]]:
    """Moments, job by job."""
    return [(name, at) for at, names in moments for name in names]


def empty_cluster(scheduler: Scheduler, name: str, outlook: Outlook) -> Ends:
    """The stated ends, then the end of all that runs, as often as it takes; () if it never does."""
    twin = clone(scheduler)
    twin.on(ClusterTick(outlook.now))
    for at, names in outlook.moments:
        twin.on_all([Ended(one, at) for one in names])
    ends = ends_of(outlook.moments)
    last = ends[-1][1] if ends else outlook.now
    stated = {one for one, _ in ends}
    for _ in range(ROUNDS):
        left = [one for one in twin.running if one not in stated]
        if name in twin.running or not left:
            break
        ends += [(one, None) for one in left]
        twin.on_all([Ended(one, last or outlook.now) for one in left])
    return ends if name in twin.running else ()


def basis_of(outlook: Outlook) -> str:
    """What an estimated start rests on."""
    text = "running jobs end when they say, and nothing comes in between"
    if outlook.unstated:
        text += f"; {len(outlook.unstated)} running state no end and are taken to run on"
    if outlook.predicted:
        text += (
            f"; {outlook.predicted} running state no end and are taken to end when nine of ten "
            "of their like had"
        )
    if outlook.overdue:
        text += f"; {len(outlook.overdue)} run longer than they said and are taken to end now"
    return text


def attempt(
    scheduler: Scheduler, name: str, ends: Ends, now: float, heals: Sequence[str] = ()
) -> Course | None:
    """In a copy: which of these ends come before the job's start, and who starts before it.

    None if it does not start when they end as said. The nodes `heals` have all their cards again
    before. Ends of one time come together. Those without a time come last: all that run then, then
    those of the others that have started meanwhile.
    """
    twin = clone(scheduler)
    starts: list[str] = []

    def started(events: list[Event]) -> bool:
        actions = [one for one in twin.on_all(events) if isinstance(one, Start)]
        names = [action.job.name for action in actions]
        there = name in twin.running
        before = names[: names.index(name)] if there else names
        starts.extend(one for one in before if one not in (*starts, name))
        return there

    if started([NodeBack(node, (), now) for node in heals] or [ClusterTick(now)]):
        return (), starts
    at, over = now, set[str]()
    for when, group in itertools.groupby(ends, key=lambda end: end[1]):
        at = at if when is None else when
        left = [one for one, _ in group]
        while left:
            ending = [one for one in left if one in twin.running]
            if not ending:
                return None
            over.update(ending)
            if started([Ended(one, at) for one in ending]):
                return [end for end in ends if end[0] in over], starts
            left = [one for one in left if one not in ending]
    return None


def shortest(scheduler: Scheduler, name: str, outlook: Outlook, ends: Ends) -> Enough | None:
    """These ends without those that make no difference, tried as they are said."""
    now = outlook.now
    course = attempt(scheduler, name, ends, now)
    if course is None:
        return None
    for near in fewer(scheduler, name, outlook):
        tried = attempt(scheduler, name, [end for end in course[0] if end[0] in near], now)
        if tried is not None:
            course = tried
            break
    ends, starts = leave_out(scheduler, name, course, now)
    return Enough(tuple((one, None if at is None else at - now) for one, at in ends), tuple(starts))


def leave_out(
    scheduler: Scheduler, name: str, course: Course, now: float, heals: Sequence[str] = ()
) -> Course:
    """Fewer of these ends that still start the job, and who starts on the way.

    Parts of falling length are left out, as delta debugging does, until no single one can be:
    a few tries where most ends do not matter.
    """
    length = (len(course[0]) + 1) // 2
    tries = TRIES
    while length and tries:
        at = 0
        while at < len(course[0]) and tries:
            rest = [*course[0][:at], *course[0][at + length :]]
            tries -= 1
            tried = attempt(scheduler, name, rest, now, heals)
            if tried is None:
                at += length
            else:
                course = tried
        length = length // 2
    return course


def fewer(scheduler: Scheduler, name: str, outlook: Outlook) -> Iterator[set[str]]:
    """Guesses at the jobs that matter: those on the job's own cards, then its queue's as well."""
    placed = outlook.placed.get(name)
    if placed is None:
        return
    held = masks_of(placed)
    near, same = set(), set()
    entry = scheduler.entry(name)
    if entry is None or entry.job.after:
        return  # which jobs must end is not a matter of cards
    chain = set(scheduler.quotas.chain(entry.job.queue))
    for other, run in scheduler.running.items():
        if any(held.get(grant.node, 0) & grant.mask for grant in run.placement):
            near.add(other)
        if chain & set(scheduler.quotas.chain(run.entry.job.queue)):
            same.add(other)
    yield near
    if not same <= near:
        yield near | same


def heal_nodes(scheduler: Scheduler, name: str, now: float) -> Enough | None:
    """The nodes with failed, cordoned or lost cards that the job needs well again.

    Where that is not enough, running jobs must end as well.
    """
    state = scheduler.state
    sick = [
        node.name
        for number, node in enumerate(state.nodes)
        if int(state.usable[number]) != int(state.present[number]) & ~cards.bits(list(node.used))
    ]
    everything: Ends = [(one, None) for one in scheduler.running]
    for ends in ((), everything):
        course = attempt(scheduler, name, ends, now, sick) if sick else None
        if course is not None:
            break
    else:
        return None
    for one in list(sick):
        rest = [other for other in sick if other != one]
        tried = attempt(scheduler, name, course[0], now, rest) if rest else None
        if tried is not None:
            sick, course = rest, tried
    ends, starts = leave_out(scheduler, name, course, now, sick)
    return Enough(tuple(ends), tuple(starts), tuple(sick))


def clone(scheduler: Scheduler) -> Scheduler:
    """A copy that can live on by itself; what never changes is shared."""
    shared: dict[int, Any] = {}

    def share(*things: Any) -> None:
        for thing in things:
            shared[id(thing)] = thing

    share(scheduler.inventory, scheduler.state.nodes, scheduler.state.number, scheduler.settings)
    for pools in scheduler.state._pools.values():
        share(*pools)
    for entry in (*scheduler.waiting.values(), *scheduler.gate.entries.values()):
        share(entry.job)
    for run in scheduler.running.values():
        share(run.entry.job, run.placement)
    share(*scheduler.quotas.kinds, *scheduler.refused.values())
    for placer in (scheduler.placer, scheduler.guess):
        share(placer.known, *placer.compiled())
    share(NO_ROOM, *scheduler.history.values())
    return copy.deepcopy(scheduler, shared)
