"""Elastic jobs: they start smaller, shrink before anybody is stopped, grow, and outlive restarts.

What could go wrong: cards are granted twice around a resize; a job runs below `min_pods` or above
`pods`; somebody is stopped though shrinking was enough; it shrinks though that starts nobody; sizes
go to and fro; a limit of a queue is broken by growing; a resize counts as an eviction or a try; a
time limit begins anew with every size; a job that waits again stays small; a restart forgets its
size; a job of lower priority shrinks one of higher.
"""

from __future__ import annotations

import random

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import cards, policies, traces
from joymigrate.run.cluster.controller import limits
from joymigrate.run.cluster.controller.ledger import LogFact
from joymigrate.run.cluster.controller.restore import restore
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import Cancelled, ClusterTick, Ended, Evict, Start, Submitted
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.simulate import simulate
from tests.run.cluster.cases import job, nodes, queue, started, submit
from tests.run.cluster.controller.test_restore import Book
from tests.run.cluster.test_properties import check_books

ONE = "[{name: n, kind: gpu-8}]"


def train(name: str, **more: object) -> GangJob:
    """Up to eight pods of a card, at least two."""
    given = {"pods": 8, "cards_per_pod": 1, "min_pods": 2, **more}
    return job(name, **given)  # type: ignore[arg-type]


def size(run: Scheduler, name: str) -> int:
    return len(run.running[name].placement)


def test_it_starts_on_what_is_free_and_grows_when_cards_are_idle() -> None:
    run = Scheduler(nodes(ONE))
    submit(run, job("r", cards_per_pod=5))
    assert started(submit(run, train("e", minutes=60))) == ["e"]
    assert size(run, "e") == 3
    assert run.running["e"].ends == 60 * 60 * 8 / 3
    run.on(Ended("r", 60.0))
    assert size(run, "e") == 3, "too young to be resized"
    actions = run.on(ClusterTick(600.0))
    assert [(type(one), one.resize if isinstance(one, Evict) else None) for one in actions] == [
        (Evict, True), (Start, None),
    ]  # fmt: skip
    assert size(run, "e") == 8
    left = 60 * 60 * 8 / 3 - 600
    assert run.running["e"].ends == pytest.approx(600 + left * 3 / 8 + 60)


def test_below_its_least_it_waits_and_says_what_the_whole_job_needs() -> None:
    run = Scheduler(nodes(ONE))
    submit(run, job("r", cards_per_pod=7))
    assert submit(run, train("e")) == []
    refusal = run.why("e")
    assert refusal is not None
    assert "needs 8 cards" in refusal.reason


def test_it_shrinks_before_somebody_is_stopped_and_by_no_more_than_needed() -> None:
    run = Scheduler(nodes(ONE), (queue("own", min=8), queue("guest")))
    submit(run, train("e", queue="guest"))
    assert size(run, "e") == 8
    actions = submit(run, job("claim", cards_per_pod=3, queue="own"), at=600.0)
    assert [one.job.name for one in actions if isinstance(one, Evict) and not one.resize] == []
    assert (size(run, "e"), size(run, "claim")) == (5, 1)
    submit(run, job("more", cards_per_pod=4, queue="own"), at=1200.0)
    assert "more" in run.running
    assert "e" not in run.running, "its least does not fit: now it is stopped"
    assert run.waiting["e"].job.pods == 8


@pytest.mark.parametrize(
    ("more", "at"), [({"priority": -1}, 600.0), ({}, 599.0), ({"cards_per_pod": 7}, 600.0)]
)
def test_it_does_not_shrink_for_less(more: dict[str, object], at: float) -> None:
    run = Scheduler(nodes(ONE))
    submit(run, train("e"))
    given = {"cards_per_pod": 4, **more}
    assert submit(run, job("j", **given), at=at) == []  # type: ignore[arg-type]
    assert size(run, "e") == 8


def test_growing_keeps_limits_and_leaves_cards_to_those_who_wait() -> None:
    run = Scheduler(nodes("[{name: n, kind: gpu-8, count: 2}]"), (queue("q", max=9), queue("r")))
    submit(run, job("s", cards_per_pod=3, queue="q"))
    assert started(submit(run, train("e", queue="q"))) == ["e"]
    assert size(run, "e") == 6
    run.on(ClusterTick(6000.0))
    assert size(run, "e") == 6
    submit(run, job("big", pods=2, cards_per_pod=8, queue="r"), at=6000.0)
    run.on(Ended("s", 6600.0))
    assert run.on(ClusterTick(9000.0)) == []
    assert size(run, "e") == 6, "the free cards are for the job that waits"
    run.on(Cancelled("big", 9000.0))
    assert size(run, "e") == 8


def test_several_tasks_are_refused() -> None:
    with pytest.raises(JoyError, match="several tasks"):
        job("j", tasks=[{"pods": 2}, {"pods": 2}], min_pods=2)


@pytest.mark.parametrize(
    ("seeds", "least"), [(range(3), 20), pytest.param(range(3, 300), 2000, marks=pytest.mark.slow)]
)
def test_random_lives_keep_the_books_and_a_restart_finds_the_same_sizes(
    seeds: range, least: int
) -> None:
    resized = 0
    for seed in seeds:
        rng = random.Random(seed)
        cluster = nodes("[{name: n, kind: gpu-8, count: 2}]")
        book = Book(cluster, [queue("a", min=4), queue("b", max=12)])
        at = 0.0
        for number in range(40):
            at += rng.choice([0.0, 60.0, 700.0])
            what, live = rng.random(), sorted(book.scheduler.running)
            if what < 0.5:
                pods = rng.randint(1, 8)
                one = job(
                    f"j{number}", queue=rng.choice("ab"), pods=pods, priority=rng.choice([0, 0, 1]),
                    cards_per_pod=rng.choice([1, 2]), minutes=rng.choice([None, 5, 100]),
                    min_pods=rng.randint(0, pods),
                )  # fmt: skip
                book.submit(one, at)
            elif what < 0.7 and live:
                book.end(rng.choice(live), at)
            elif what < 0.8:
                names = sorted([*live, *book.scheduler.waiting])
                book.cancel(rng.choice(names), at) if names else None
            else:
                book.settle(book.scheduler.on(ClusterTick(at)), at)
            check_books(book.scheduler)
            for name, run in book.scheduler.running.items():
                whole = run.entry.whole or run.entry.job
                assert (whole.min_pods or whole.pods) <= len(run.placement) <= whole.pods
                record = book.ledger.records[name]
                assert record.job.pods == len(record.pods) == len(run.placement)
                assert (record.whole or record.job).pods == whole.pods
                resized += run.entry.whole is not None
            for entry in book.scheduler.waiting.values():
                assert entry.whole is None
                assert entry.job.pods == book.ledger.records[entry.job.name].job.pods
        again, _ = restore(book.ledger, cluster, at)
        for name, run in book.scheduler.running.items():
            if name in again.running:
                other = again.running[name].entry
                assert (other.whole or other.job).pods == (run.entry.whole or run.entry.job).pods
    assert resized > least


def test_a_resize_is_no_eviction_no_try_and_the_time_limit_goes_on() -> None:
    book = Book(nodes(ONE), [queue("q")])
    book.submit(train("e", queue="q", time_limit_minutes=20), 0.0)
    book.submit(job("j", cards_per_pod=4, queue="q"), 600.0)
    record = book.ledger.records["e"]
    assert (record.evictions, record.tries, record.ran_s, record.job.pods) == (0, 1, 600.0, 4)
    assert limits.ends_due(book.ledger, 1199.0) == []
    assert [fact.job for fact in limits.ends_due(book.ledger, 1200.0)] == ["e"]
    assert sum(one.resized for one in book.ledger.attempts.values()) == 1
    book.write(LogFact("evicted", 900.0, "e", data={"why": "drained"}))
    assert (record.job.pods, record.ran_s, record.evictions) == (8, 0.0, 1)


def test_a_simulated_job_advances_by_its_share_and_all_work_is_done() -> None:
    cluster = nodes(ONE)
    arrivals = (
        traces.Arrival(train("e", minutes=60), 0.0, 3600.0),
        traces.Arrival(job("j", cards_per_pod=4, minutes=60), 1800.0, 3600.0),
    )
    run = simulate(
        cluster, traces.JobTrace(arrivals), "topology", settings=ClusterSettings(resize_cost=0.0)
    )
    assert run.tally.finished["j"] == 5400.0
    assert run.tally.finished["e"] == 1800.0 + 3600.0, "half of its work at half of its speed"
    assert (run.evictions, run.tally.resizes, run.wait_mean_h) == (0, 1, 0.0)


def test_without_min_pods_nothing_changes() -> None:
    policy = policies.get("topology")
    run = Scheduler(nodes(ONE), (), policy, None, ClusterSettings(elastic=True))
    submit(run, job("r", cards_per_pod=8))
    assert run.on(Submitted(job("j", pods=4), 700.0)) == []
    run.on(Cancelled("r", 800.0))
    assert {cards.count(run.state.free).sum()} == {4}


@pytest.mark.parametrize(
    ("cluster", "asked", "size_there"),
    [
        ("[{name: n, kind: gpu-8, count: 2}]", {"pods": 12, "leaf": "one"}, 8),
        (ONE, {"pods": 20, "cards_per_pod": 0.5}, 16),
        (
            "[{name: n, kind: ascend-a3-16, count: 6, per_superpod: 3}]",
            {"kind": "ascend-a3-16", "pods": 6, "cards_per_pod": 16, "sp_block": 32},
            4,
        ),
    ],
)
def test_where_only_fewer_pods_can_ever_lie_it_runs_on_them(
    cluster: str, asked: dict[str, object], size_there: int
) -> None:
    run = Scheduler(nodes(cluster), (), policies.get("topology"))
    assert started(submit(run, train("t", **asked))) == ["t"]
    assert size(run, "t") == size_there
