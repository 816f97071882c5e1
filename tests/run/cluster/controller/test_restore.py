"""A scheduler that is made from the ledger stands where the one before it stood."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.run.cluster import cards, inventory, jobs
from joymigrate.run.cluster.controller.ledger import JobLedger, LogFact
from joymigrate.run.cluster.controller.restore import find_lost, restore, submission
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import Action, Cancelled, ClusterTick, Ended, Evict, Start
from joymigrate.run.cluster.scheduler import Scheduler
from tests.run.cluster.cases import job, nodes, queue
from tests.run.cluster.test_properties import check_books, histories

LENIENT = ClusterSettings(overcommit=True)


class Book:
    """A scheduler whose every decision goes into a ledger, as the controller does it."""

    def __init__(self, cluster: inventory.Inventory, queues: Any) -> None:
        self.cluster = cluster
        self.ledger = JobLedger()
        limits = {"queues": [dataclasses.asdict(one) for one in queues], "weights": {}}
        self.write(LogFact("opened", 0.0, data={"identity": "x", "policy": "topology", **limits}))
        self.scheduler, actions = restore(self.ledger, cluster, 0.0, LENIENT)
        self.settle(actions, 0.0)

    def write(self, fact: LogFact) -> None:
        self.ledger.apply(dataclasses.replace(fact, number=self.ledger.last + 1))

    def settle(self, actions: list[Action], at: float) -> None:
        for action in actions:
            if isinstance(action, Evict):
                data = {"why": action.why, **({"resize": True} if action.resize else {})}
                self.write(LogFact("evicted", at, action.job.name, data=data))
            elif isinstance(action, Start):
                pods = [
                    {"node": self.cluster.nodes[g.node].name, "cards": cards.ids(g.mask), "rank": i}
                    for i, g in enumerate(action.placement)
                ]
                run = self.scheduler.running.get(action.job.name)
                sized = {"minutes": action.job.minutes} if run and run.entry.whole else {}
                self.write(LogFact("started", at, action.job.name, data={"pods": pods, **sized}))
        for hold in self.scheduler.admission.holds:
            self.write(LogFact("promised", at, hold.entry.job.name))

    def submit(self, new: jobs.GangJob, at: float) -> None:
        self.write(LogFact("submitted", at, new.name, "me", {"job": dataclasses.asdict(new)}))
        self.settle(self.scheduler.on(submission(self.ledger.records[new.name], at)), at)

    def end(self, name: str, at: float) -> None:
        if self.ledger.records[name].state == "running":
            data = {"codes": [0], "state": "done"}
            self.write(LogFact("ended", at, name, data=data))
            self.settle(self.scheduler.on(Ended(name, at)), at)

    def cancel(self, name: str, at: float) -> None:
        if self.ledger.records[name].state in ("running", "waiting"):
            self.write(LogFact("cancelled", at, name))
            self.settle(self.scheduler.on(Cancelled(name, at)), at)


def stands(one: Scheduler) -> dict[str, Any]:
    """What must be alike."""
    return {
        "running": {name: run.placement for name, run in one.running.items()},
        "ends": {name: round(run.ends, 3) for name, run in one.running.items()},
        "waiting": {
            name: (e.since, e.submitted, e.promised, e.job) for name, e in one.waiting.items()
        },
        "line": [entry.job.name for entry in sorted(one.waiting.values())],
        "refused": sorted(one.refused),
        "use": {name: round(used, 6) for name, used in one.quotas._used.items() if used},
        "free": one.state.free.tolist(),
        "cpu": one.state.cpu.tolist(),
    }


@given(histories(), st.integers(0, 30))
@settings(deadline=None, max_examples=100)
def test_a_restart_at_any_moment_changes_nothing(history: Any, moment: int) -> None:
    """Until then and after: whatever the restored one starts at once, the other starts too."""
    cluster, queues, events = history
    book = Book(cluster, queues)
    for number, event in enumerate(events):
        known = getattr(event, "job", None)
        if isinstance(known, jobs.GangJob):
            book.submit(known, event.at)
        elif isinstance(event, Ended | Cancelled) and known in book.ledger.records:
            (book.end if isinstance(event, Ended) else book.cancel)(known, event.at)
        if number == moment:
            at = event.at
            book.settle(book.scheduler.on(ClusterTick(at)), at)
            again, actions = restore(book.ledger, cluster, at, LENIENT)
            check_books(again)
            # A restored scheduler tries everybody once more; what it starts had room.
            before = stands(book.scheduler)
            if not actions:
                assert stands(again) == before
            started = {action.job.name for action in actions if isinstance(action, Start)}
            assert not [action for action in actions if isinstance(action, Evict)] or started
            for name, placement in before["running"].items():
                if name in again.running:
                    assert again.running[name].placement == placement
            assert {*again.running, *again.waiting, *again.refused} == {
                *book.scheduler.running,
                *book.scheduler.waiting,
                *book.scheduler.refused,
            }
            book.scheduler = again
            book.settle(actions, at)
    check_books(book.scheduler)


def test_a_job_with_shares_of_one_card_and_whole_cards_runs_on() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}]")
    book = Book(cluster, [queue("q")])
    tasks = [{"pods": 2, "cards_per_pod": 0.5}, {"pods": 1, "cards_per_pod": 7}]
    book.submit(job("r", tasks=tasks), 0.0)
    again, actions = restore(book.ledger, cluster, 60.0)
    assert actions == []
    assert stands(again) == stands(book.scheduler)
    assert list(again.running) == ["r"]


@pytest.mark.parametrize(
    "impossible",
    [
        {"pods": 2, "cards_per_pod": 10},
        {"tasks": [{"pods": 1, "cards_per_pod": 4}, {"pods": 1, "cards_per_pod": 10}]},
    ],
)
def test_a_job_that_can_never_start_is_refused_on_a_full_cluster_too(
    impossible: dict[str, Any],
) -> None:
    cluster = nodes("[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}, {name: c, kind: gpu-8}]")
    book = Book(cluster, [queue("q")])
    book.submit(job("j", **impossible), 0.0)
    book.submit(job("r", pods=3, cards_per_pod=8), 60.0)
    again, _ = restore(book.ledger, cluster, 120.0)
    assert list(again.running) == ["r"]
    assert list(again.refused) == ["j"]
    assert again.refused["j"] == book.scheduler.refused["j"]


def test_a_limit_below_a_job_of_several_kinds_is_seen_on_a_full_cluster_too() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}, {name: b, kind: ascend-910b-16}]")
    book = Book(cluster, [queue("q", max={"cards": 4}), queue("r")])
    two = {"pods": 1, "cards_per_pod": 16, "kinds": ["gpu-8", "ascend-910b-16"]}
    book.submit(job("j", queue="q", tasks=[two]), 0.0)
    one = {"pods": 1, "cards_per_pod": 16, "kinds": ["ascend-910b-16"]}
    book.submit(job("r", queue="r", tasks=[one]), 60.0)
    assert list(book.scheduler.refused) == ["j"]
    again, _ = restore(book.ledger, cluster, 120.0)
    assert again.refused == book.scheduler.refused


def test_holds_and_places_in_line_are_kept() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]")
    book = Book(cluster, [queue("q")])
    for name in ("r0", "r1"):
        book.submit(job(name, cards_per_pod=8, minutes=60), 0.0)
    book.submit(job("big", pods=2, cards_per_pod=8, minutes=60), 60.0)
    book.submit(job("small", cards_per_pod=8, minutes=600), 120.0)
    assert [hold.entry.job.name for hold in book.scheduler.admission.holds] == ["big"]
    again, actions = restore(book.ledger, cluster, 180.0)
    assert actions == []
    assert [hold.entry.job.name for hold in again.admission.holds] == ["big"]
    assert again.waiting["small"].submitted == 120.0
    assert again.running["r0"].ends == 3600.0


def test_jobs_on_cards_that_failed_or_on_cordoned_nodes_run_on_and_nobody_joins_them() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}]")
    book = Book(cluster, [queue("q")])
    book.submit(job("r", cards_per_pod=4), 0.0)
    book.write(LogFact("cards_failed", 1.0, data={"node": "a", "cards": [0, 7]}))
    again, _ = restore(book.ledger, cluster, 2.0)
    assert "r" in again.running
    assert int(again.state.free[0]) == 0b01110000
    book.write(LogFact("cordoned", 1.0, data={"node": "a"}))
    again, _ = restore(book.ledger, cluster, 2.0)
    assert "r" in again.running
    assert int(again.state.free[0]) == 0
    again.on(Ended("r", 3.0))
    assert int(again.state.free[0]) == 0


def test_jobs_whose_node_is_gone_are_named_and_min_may_then_be_too_much() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]")
    book = Book(cluster, [queue("q", min=16)])
    book.submit(job("r", cards_per_pod=8, pods=2, queue="q"), 0.0)
    smaller = nodes("[{name: a, kind: gpu-8}]")
    assert find_lost(book.ledger, smaller) == {"r": "node b is lost"}
    book.write(LogFact("evicted", 1.0, "r", data={"why": "node b is lost"}))
    again, _ = restore(book.ledger, smaller, 2.0)
    reason = again.why("r")
    assert reason is not None
    assert (reason.code, reason.permanent) == ("size_total", True)
