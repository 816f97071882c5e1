"""What holds after any sequence of events on any small mixed cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.run.cluster import cards, inventory, jobs, policies
from joymigrate.run.cluster.events import (
    Cancelled,
    CardsFailed,
    ClusterTick,
    Ended,
    Event,
    Evict,
    NodeBack,
    NodeLost,
    Start,
    Submitted,
)
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.queues import Queue, QueueItem, queue_of
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.state import ClusterState
from joymigrate.schema import read

KINDS = ("gpu-8", "gpu-2", "ascend-910-8", "ascend-910b-8", "ascend-910b-16", "ascend-a3-16")
SIZES = (0.25, 0.5, 1, 2, 3, 4, 6, 8, 10, 16)
EVICTIONS = ("never", "lower-priority", "over-deserved")


def halves(width: int) -> list[list[int]]:
    """Two NUMA nodes of a server: the lower and the upper half of its cards."""
    return [[*range(width // 2)], [*range(width // 2, width)]]


@st.composite
def clusters(draw: st.DrawFn) -> inventory.Inventory:
    nodes = []
    for number in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(KINDS))
        width = int(kind.rsplit("-", 1)[1])
        ids = st.lists(st.integers(0, width - 1), max_size=3, unique=True)
        nodes.append(
            {
                "name": f"n{number}",
                "kind": kind,
                "used": draw(ids),
                "unhealthy": draw(ids),
                "leaf": draw(st.sampled_from(["", "l0", "l1"])),
                "superpod": draw(st.sampled_from(["", "s0"])),
                "cpu": draw(st.sampled_from([None, 16])),
                "numa": draw(st.sampled_from([None, halves(width)])),
            }
        )
    return inventory.from_data({"nodes": nodes})


@st.composite
def requests(draw: st.DrawFn, name: str = "j") -> jobs.GangJob:
    def task() -> dict[str, Any]:
        return {
            "pods": draw(st.integers(1, 4)),
            "cards_per_pod": draw(st.sampled_from(SIZES)),
            "cpu_per_pod": draw(st.sampled_from([0, 4])),
        }

    item: dict[str, Any] = {
        "name": name,
        "kind": draw(st.lists(st.sampled_from(KINDS), max_size=2, unique=True)),
        "priority": draw(st.integers(0, 2)),
        "minutes": draw(st.sampled_from([None, 1, 10])),
        "leaf": draw(st.sampled_from(["prefer", "one", "fill", "any"])),
        "numa": draw(st.sampled_from(["prefer", "one", "any"])),
    }
    if draw(st.booleans()):
        item |= task()
    else:
        item["tasks"] = [task() for _ in range(draw(st.integers(1, 3)))]
        if draw(st.booleans()):
            item["tasks"].append({"name": "launcher", "pods": 1, "cards_per_pod": 0})
    return jobs.from_data({"jobs": [item]}).jobs[0]


@given(clusters(), st.lists(requests(), max_size=8), st.sampled_from(policies.names()))
@settings(deadline=None, max_examples=80)
def test_placing_and_giving_back_restores_the_exact_state(
    cluster: inventory.Inventory, wanted: list[jobs.GangJob], policy: str
) -> None:
    state = ClusterState(cluster)
    placer = Placer(state, policies.get(policy))
    before = [array.copy() for array in state.snapshot()]
    taken = []
    for job in wanted:
        placed = placer.place(job)
        if isinstance(placed, PlacementRefusal):
            assert placed.reason
            assert placed.frees
            continue
        check_grants(state, job, placed)
        state.take(placed)
        taken.append(placed)
    for placed in reversed(taken):
        state.give(placed)
    for array, kept in zip(state.snapshot(), before, strict=True):
        assert np.array_equal(array, kept)


def check_grants(state: ClusterState, job: jobs.GangJob, placed: Any) -> None:
    """Every pod has its cards, all of them free, healthy and of an accepted kind."""
    tasks = [task for task in job.tasks for _ in range(task.pods)]
    assert len(placed) == len(tasks)
    masks: dict[int, int] = {}
    for task, grant in zip(tasks, placed, strict=True):
        node = state.nodes[grant.node]
        assert not task.kinds or node.kind.name in task.kinds
        assert grant.mask.bit_count() == (task.cards or bool(task.milli))
        assert not set(cards.ids(grant.mask)) & {*node.used, *node.unhealthy}
        if not task.milli:
            assert int(state.free[grant.node]) & grant.mask == grant.mask
            assert not masks.get(grant.node, 0) & grant.mask
            masks[grant.node] = masks.get(grant.node, 0) | grant.mask
            if task.cards:
                check_shape(node.kind, cards.ids(grant.mask), len(tasks) > 1)
        if job.numa == "one" and task.cards:
            groups = [set(group) for group in node.numa]
            assert any(set(cards.ids(grant.mask)) <= group for group in groups)
    if job.leaf == "one" and len({grant.node for grant in placed}) > 1:
        leaves = {state.nodes[grant.node].leaf for grant in placed}
        assert len(leaves) == 1
        assert leaves != {""}


def check_shape(kind: Any, ids: list[int], gang: bool) -> None:
    """No ring is crossed by a request that fits one; modules are whole."""
    assert len(ids) in kind.legal or kind.rule == "count"
    inside = [len(set(group) & set(ids)) for group in kind.groups]
    if kind.rule == "rings" and len(ids) <= len(kind.groups[0]):
        assert sum(bool(n) for n in inside) == 1
    if kind.rule == "rings" and len(ids) > len(kind.groups[0]):
        assert len(set(inside)) == 1
    if kind.rule == "modules" and len(ids) > 1:
        assert set(inside) <= {0, 2}


@st.composite
def histories(draw: st.DrawFn) -> tuple[inventory.Inventory, list[Queue], list[Event]]:
    cluster = draw(clusters())
    size = cluster.cards
    queues = []
    for name in ("a", "b"):
        low = draw(st.integers(0, max(0, size // 3)))
        high = draw(st.sampled_from([None, low + 4, size]))
        raw = {"name": name, "min": low, "eviction": draw(st.sampled_from(EVICTIONS))}
        raw |= {"max": high} if high is not None else {}
        queues.append(queue_of(read(QueueItem, raw, "test")))
    events: list[Event] = []
    names = [node.name for node in cluster.nodes]
    for number in range(draw(st.integers(1, 25))):
        at = float(number * 60)
        what = draw(st.integers(0, 9))
        old = f"j{draw(st.integers(0, max(0, number - 1)))}"
        node = draw(st.sampled_from(names))
        if what < 5:
            job = draw(requests(f"j{number}"))
            events.append(Submitted(replace_queue(job, draw(st.sampled_from("ab"))), at))
        elif what < 7:
            events.append(Ended(old, at))
        elif what == 7:
            events.append(Cancelled(old, at))
        elif what == 8:
            events.append(draw(st.sampled_from([NodeLost(node, at), NodeBack(node, (), at)])))
        else:
            events.append(draw(st.sampled_from([CardsFailed(node, (0,), at), ClusterTick(at)])))
    return cluster, queues, events


def replace_queue(job: jobs.GangJob, queue: str) -> jobs.GangJob:
    from dataclasses import replace

    return replace(job, queue=queue)


@given(histories(), st.sampled_from(policies.names()))
@settings(deadline=None, max_examples=120)
def test_whatever_happens_no_card_is_held_twice_and_no_limit_is_broken(
    history: tuple[inventory.Inventory, list[Queue], list[Event]], policy: str
) -> None:
    cluster, queues, events = history
    run = Scheduler(cluster, queues, policies.get(policy))
    for event in events:
        actions = run.on(event)
        started = {action.job.name for action in actions if isinstance(action, Start)}
        for action in actions:
            if isinstance(action, Evict) and action.by:
                assert action.by in started, "a useless eviction"
        check_books(run)
    for name in list(run.running):
        run.on(Ended(name, 1e6))
        check_books(run)
    for name in list(run.waiting):
        assert run.why(name) is not None, name


def check_books(run: Scheduler) -> None:
    """Cards held by running jobs and nothing else are missing; limits hold; gangs are whole."""
    held: dict[tuple[int, int], float] = {}
    used: dict[str, float] = {}
    for live in run.running.values():
        assert len(live.placement) == live.entry.job.pods
        used[live.entry.job.queue] = used.get(live.entry.job.queue, 0) + live.entry.job.cards
        for grant in live.placement:
            for card in cards.ids(grant.mask):
                key = grant.node, card
                held[key] = held.get(key, 0) + (grant.milli or 1000)
    assert all(milli <= 1000 for milli in held.values())
    for node in range(len(run.state.nodes)):
        for card in range(16):
            free = bool(int(run.state.idle[node]) >> card & 1)
            assert free == (held.get((node, card), 0) == 0)
    for account in run.quotas.accounts.values():
        for limit in account.max:
            assert limit.used <= limit.bound + 1e-6
        if not account.children:
            assert (
                abs(run.quotas._used[account.queue.name] - used.get(account.queue.name, 0)) < 1e-6
            )


@given(clusters(), st.integers(1, 12), st.sampled_from(["gpu-8", "ascend-910-8", "ascend-910b-8"]))
@settings(deadline=None, max_examples=60)
def test_every_feasible_min_claim_is_served_in_its_own_cycle(
    cluster: inventory.Inventory, guests: int, kind: str
) -> None:
    """An empty copy of the cluster can place the claim, so the full one must, by evicting."""
    low = cluster.count().get(kind, 0)
    queues = [
        queue_of(QueueItem("owner", {kind: low} if low else None)),
        queue_of(read(QueueItem, {"name": "guest"}, "test")),
    ]
    run = Scheduler(cluster, queues)
    for number in range(guests):
        item = {"name": f"g{number}", "kind": kind, "queue": "guest", "cards_per_pod": 1}
        run.on(Submitted(jobs.from_data({"jobs": [item]}).jobs[0]))
    for size in (8, 4, 2, 1):
        item = {"name": f"claim{size}", "kind": kind, "queue": "owner", "cards_per_pod": size}
        claim = jobs.from_data({"jobs": [item]}).jobs[0]
        empty = Scheduler(cluster, queues)
        for live in run.running.values():
            if live.entry.job.queue == "owner":
                empty.state.take(live.placement)
        feasible = not isinstance(empty.placer.place(claim), PlacementRefusal)
        actions = run.on(Submitted(claim))
        started = claim.name in run.running
        assert started == ((feasible and low > 0) or started)
        if started:
            needed = [a for a in actions if isinstance(a, Evict)]
            assert sum(a.job.cards for a in needed) <= size
        else:
            run.on(Cancelled(claim.name))
