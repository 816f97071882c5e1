"""Reservations by calendar against brute force in small worlds, and through the operator's orders.

What could go wrong: a job without a run time starts on cards of a coming window; one that ends
before it is kept away; a queue's own window bars the queue; a job that overruns stays in a window;
a window's end wakes nobody; two windows share a card; a restart forgets or doubles a window; the
reason says free cards are missing where they are reserved; held cards reach into a window; a pod
without cards runs on a node in maintenance.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import cards as masks
from joymigrate.run.cluster import policies
from joymigrate.run.cluster.bookings import Booking, choose, on_nodes
from joymigrate.run.cluster.controller.orders import Order, Window, decide
from joymigrate.run.cluster.controller.restore import restore
from joymigrate.run.cluster.entries import Settings
from joymigrate.run.cluster.events import Cancelled, Ended, Evict, Start, Submitted, Tick
from joymigrate.run.cluster.explain import explain
from joymigrate.run.cluster.foresight import foresee
from joymigrate.run.cluster.jobs import Job, PodAllocation
from joymigrate.run.cluster.reasons import Refusal
from joymigrate.run.cluster.scheduler import Scheduler
from tests.run.cluster.cases import evicted, job, nodes, queue, started, submit
from tests.run.cluster.controller.test_restore import Book

Card = tuple[str, int]


def allowed(one: Job, card: Card, at: float, windows: Iterable[Booking]) -> bool:
    """The rule, written down a second time."""
    for window in windows:
        if not any(part.node == card[0] and card[1] in part.cards for part in window.cards):
            continue
        ends_before = one.minutes is not None and at + one.minutes * 60 <= window.begin
        own = window.queue != "" and window.queue == one.queue
        if at < window.end and not own and not ends_before:
            return False
    return True


def fits(one: Job, free: set[Card], at: float, windows: Iterable[Booking]) -> bool:
    """Whether every pod finds its cards on one node each: plain servers, so counting decides."""
    task, open_ = one.tasks[0], [card for card in free if allowed(one, card, at, windows)]
    by_node: dict[str, int] = {}
    for node, _ in open_:
        by_node[node] = by_node.get(node, 0) + 1
    return sum(count // task.cards for count in by_node.values()) >= task.pods


def free_cards(run: Scheduler) -> set[Card]:
    """From the running jobs alone, not from the scheduler's state."""
    every = {(node.name, card) for node in run.inventory.nodes for card in range(node.cards)}
    return every - {card for name in run.running for card in cards_of(run, name)}


def cards_of(run: Scheduler, name: str) -> set[Card]:
    return {
        (run.inventory.nodes[grant.node].name, card)
        for grant in run.running[name].placement
        for card in masks.ids(grant.mask)
    }


def one_world(seed: int, hold: bool) -> dict[str, int]:
    """A small world that lives for 25 events; what was seen of each kind."""
    rng = random.Random(seed)
    cluster = nodes(
        f"[{{name: n, kind: gpu-{rng.choice([2, 4])}, count: {rng.choice([1, 2, 3])}}}]"
    )
    every = [(node.name, card) for node in cluster.nodes for card in range(node.cards)]
    windows: list[Booking] = []
    for number in range(rng.choice([1, 1, 2, 3])):
        chosen = rng.sample(every, rng.randint(1, len(every)))
        parts = {node: tuple(c for n, c in chosen if n == node) for node, _ in chosen}
        begin = 60.0 * rng.randint(0, 40)
        windows.append(
            Booking(
                f"w{number}",
                tuple(PodAllocation(node, ids) for node, ids in parts.items()),
                begin,
                begin + 60.0 * rng.randint(1, 20),
                rng.choice(["", "a"]),
            )
        )
    policy = policies.get(rng.choice(["topology", "binpack", "spread"]))
    run = Scheduler(cluster, (), policy, None, Settings(hold=hold))
    run.book(windows)
    seen = {"starts": 0, "booked": 0, "evicted": 0, "refused": 0}
    at = 0.0
    for number in range(25):
        at += 60.0 * rng.choice([0, 1, 3])
        what = rng.random()
        if what < 0.6 or not run.running:
            item = job(
                f"j{number}", kind=cluster.nodes[0].kind.name, queue=rng.choice("ab"),
                pods=rng.choice([1, 1, 2]), cards_per_pod=rng.choice([1, 2]),
                minutes=rng.choice([None, 1, 5, 15]),
            )  # fmt: skip
            event: Submitted | Ended | Cancelled = Submitted(item, at)
        elif what < 0.9:
            event = Ended(rng.choice(sorted(run.running)), at)
        else:
            event = Cancelled(rng.choice(sorted([*run.running, *run.waiting])), at)
        actions = [*run.on(event), *run.on(Tick(at))]
        for action in actions:
            if isinstance(action, Start) and action.job.name in run.running:
                seen["starts"] += 1
                for card in cards_of(run, action.job.name):
                    assert allowed(action.job, card, at, windows), (seed, number)
            seen["evicted"] += isinstance(action, Evict)
        free = free_cards(run)
        for name, live in run.running.items():
            for card in cards_of(run, name):
                inside = [w for w in windows if w.begin <= at < w.end]
                own = dataclasses.replace(live.entry.job, minutes=None)
                assert allowed(own, card, at, inside), (seed, number, "overruns a window")
        for name, entry in run.waiting.items():
            refusal = run.why(name)
            assert refusal is not None
            here, bare = fits(entry.job, free, at, windows), fits(entry.job, free, at, ())
            if not hold:
                assert not here, (seed, number, name, "kept away for nothing")
                assert (refusal.code == "booked") == bare, (seed, number, name, refusal)
            elif refusal.code == "booked":
                assert bare, (seed, number, name)
            seen["booked"] += refusal.code == "booked"
    return seen


def shapes(seed: int) -> bool:
    """One choice of cards for a window against counting; whether there was one."""
    rng = random.Random(seed)
    cluster = nodes(f"[{{name: n, kind: gpu-4, count: {rng.choice([1, 2, 3])}}}]")
    run = Scheduler(cluster, (), policies.get("topology"))
    for number in range(rng.randint(0, 6)):
        minutes = rng.choice([None, 5, 30])
        one = job(f"j{number}", kind="gpu-4", cards_per_pod=rng.choice([1, 2]), minutes=minutes)
        submit(run, one)
    other = Booking("o", (PodAllocation("n-0", (0, 1)),), 60.0 * rng.randint(0, 30), 2400.0)
    booked = [on_nodes(other, run.state)]
    begin = 60.0 * rng.randint(0, 40)
    end = begin + 60.0 * rng.randint(1, 20)
    wanted = job("w", kind="gpu-4", pods=rng.choice([1, 2]), cards_per_pod=rng.choice([1, 2, 4]))
    late = {
        card
        for name, live in run.running.items()
        if live.entry.job.minutes is None or live.ends > begin
        for card in cards_of(run, name)
    }
    every = {(node.name, card) for node in cluster.nodes for card in range(4)}
    overlap = other.begin < end and begin < other.end
    taken = {("n-0", 0), ("n-0", 1)} if overlap else set()
    found = choose(run.state, run.allocations, run.guess, wanted, booked, [(begin, end)])
    free = every - late - taken
    assert isinstance(found, Refusal) == (not fits(wanted, free, 0.0, ())), seed
    if not isinstance(found, Refusal):
        got = [(part.node, card) for part in found for card in part.cards]
        assert len(got) == len({*got}) == wanted.cards
        assert {*got} <= free, seed
    return not isinstance(found, Refusal)


@pytest.mark.parametrize("hold", [False, True])
def test_small_worlds_agree_with_brute_force(hold: bool) -> None:
    seen = [one_world(seed, hold) for seed in range(30)]
    assert sum(one["booked"] for one in seen) > 10
    assert sum(one["evicted"] for one in seen) > 0


@pytest.mark.slow
@pytest.mark.parametrize("hold", [False, True])
def test_thousands_of_small_worlds_agree_with_brute_force(hold: bool) -> None:
    seen = [one_world(seed, hold) for seed in range(3000)]
    print({key: sum(one[key] for one in seen) for key in seen[0]})


def test_cards_of_a_window_are_found_wherever_there_are_some() -> None:
    found = [shapes(seed) for seed in range(150)]
    assert 20 < sum(found) < 130


def reserved(begin: float, end: float, **more: object) -> Order:
    window = Window("w", begin, end, **more)  # type: ignore[arg-type]
    return Order("reserve", "op", 0.0, window=window)


def test_a_window_keeps_jobs_out_says_so_and_is_over() -> None:
    run = Scheduler(nodes("[{name: n, kind: gpu-8}]"), (queue("q"),))
    run.book([Booking("night", (PodAllocation("n", tuple(range(8))),), 3600.0, 7200.0)])
    assert started(submit(run, job("short", minutes=30, queue="q"))) == ["short"]
    assert submit(run, job("long", minutes=90, queue="q"), job("open", queue="q")) == []
    refusal = run.why("long")
    assert refusal is not None
    assert refusal.code == "booked"
    assert "night, which begins in 60 minutes and is over in 120 minutes" in refusal.reason
    assert "of 90 minutes reaches into it" in refusal.reason
    foresight = foresee(run, "open", 0.0)
    assert foresight.in_s == 7200.0
    data = explain(run, "long", 0.0)
    assert data is not None
    assert data["held"] == [{"for": "reservation night", "cards": 7, "until_s": 7200.0}]
    actions = run.on(Tick(3600.0))
    assert evicted(actions) == ["short"], "it has run longer than it said"
    assert {*started(run.on(Tick(7200.0)))} == {"long", "open", "short"}


def test_a_queues_own_window_is_for_it_and_it_takes_those_cards_first() -> None:
    run = Scheduler(nodes("[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]"), (queue("q"),))
    run.book([Booking("ours", (PodAllocation("b", tuple(range(8))),), 0.0, 7200.0, "q")])
    assert started(submit(run, job("theirs", cards_per_pod=8))) == ["theirs"]
    assert cards_of(run, "theirs") == {("a", card) for card in range(8)}
    run.on(Ended("theirs", 60.0))
    assert started(submit(run, job("mine", queue="q"), at=60.0)) == ["mine"]
    assert {node for node, _ in cards_of(run, "mine")} == {"b"}
    assert evicted(run.on(Tick(7200.0))) == []


def test_a_pod_without_cards_stays_away_from_a_node_in_maintenance() -> None:
    run = Scheduler(nodes("[{name: n, kind: gpu-8}]"))
    submit(run, job("light", cards_per_pod=0))
    run.book([Booking("all", (PodAllocation("n", tuple(range(8))),), 0.0, 600.0)])
    assert evicted(run.on(Tick(1.0))) == ["light"]
    assert started(run.on(Tick(600.0))) == ["light"]


def test_orders_reserve_refuse_cancel_and_outlive_a_restart() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]")
    book = Book(cluster, [queue("q")])
    book.submit(job("runs", cards_per_pod=8, queue="q"), 0.0)
    (node,) = {pod.node for pod in book.ledger.records["runs"].pods}
    other = "b" if node == "a" else "a"
    shape = job("w", kind="gpu-8", cards_per_pod=8)

    def refuses(order: Order, says: str) -> None:
        with pytest.raises(JoyError, match=says):
            decide(order, book.ledger, cluster)

    refuses(reserved(60, 120, nodes=(node,)), "runs may still run there")
    refuses(
        reserved(
            60, 120, shape=dataclasses.replace(shape, tasks=job("x", pods=2, cards_per_pod=8).tasks)
        ),
        "finds no room",
    )
    refuses(reserved(60, 120, nodes=("c",)), "no node 'c'")
    refuses(reserved(60, 120, nodes=("a",), queue="r"), "no queue 'r'")
    refuses(reserved(120, 60, nodes=("a",)), "over before it begins")
    refuses(reserved(60, 120), "neither nodes nor cards")
    for fact in decide(reserved(60, 120, shape=shape), book.ledger, cluster):
        book.write(fact)
    (booking,) = book.ledger.bookings.values()
    assert [part.node for part in booking.cards] == [other]
    refuses(reserved(60, 120, shape=shape), "a reservation called 'w'")
    again, _ = restore(book.ledger, cluster, 30.0)
    assert started(again.on(Submitted(job("late", cards_per_pod=8, minutes=5), 30.0))) == []
    fact = decide(Order("unreserve", "op", 40.0, window=Window("w")), book.ledger, cluster)[0]
    book.write(fact)
    assert book.ledger.bookings == {}
    refuses(Order("unreserve", "op", 40.0, window=Window("w")), "no reservation 'w'")


def test_a_window_that_began_while_the_controller_was_away_is_cleared_at_once() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}]")
    book = Book(cluster, [queue("q")])
    book.submit(job("runs", cards_per_pod=8, queue="q"), 0.0)
    for fact in decide(reserved(60, 600, nodes=("a",), stop=True), book.ledger, cluster):
        book.write(fact)
    again, actions = restore(book.ledger, cluster, 30.0)
    assert actions == []
    again, actions = restore(book.ledger, cluster, 90.0)
    assert evicted(actions) == ["runs"]
    assert started(again.on(Tick(600.0))) == ["runs"]
