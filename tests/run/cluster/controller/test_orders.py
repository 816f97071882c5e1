"""What an operator orders: each order is checked, and its facts do what it says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.controller.orders import (
    ClusterOrder,
    compare_quotas,
    decide,
)
from joymigrate.run.cluster.controller.restore import restore
from tests.run.cluster.cases import job, nodes, queue
from tests.run.cluster.controller.test_restore import Book

TWO = "[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]"


def book(*new: jobs.GangJob, cluster: str = TWO, queues: Iterable[Any] = ()) -> Book:
    made = Book(nodes(cluster), list(queues))
    for one in new:
        made.submit(one, 0.0)
    return made


def give(made: Book, verb: str, at: float = 60.0, **more: Any) -> None:
    """Follow an order as the controller does."""
    for fact in decide(ClusterOrder(verb, "ann", at, **more), made.ledger, made.cluster):
        made.write(fact)
    made.scheduler, actions = restore(made.ledger, made.cluster, at)
    made.settle(actions, at)


def where(made: Book, name: str) -> set[str]:
    return {pod.node for pod in made.ledger.records[name].pods}


def test_a_cordoned_node_keeps_its_gangs_and_gets_no_others() -> None:
    made = book(job("r", cards_per_pod=4))
    (node,) = where(made, "r")
    give(made, "cordon", node=node, why="fan")
    made.submit(job("next", cards_per_pod=4), 70.0)
    assert where(made, "next") == {"a", "b"} - {node}
    assert where(made, "r") == {node}
    give(made, "undrain", node=node)
    made.submit(job("more", cards_per_pod=8, pods=1), 80.0)
    assert made.ledger.records["more"].state == "waiting"
    made.submit(job("four", cards_per_pod=4), 90.0)
    assert made.ledger.records["four"].state == "running"


def test_a_drained_node_sends_its_gangs_elsewhere_and_they_keep_their_place() -> None:
    made = book(job("r", cards_per_pod=4, pods=1))
    (node,) = where(made, "r")
    give(made, "drain", node=node, why="driver")
    assert where(made, "r") == {"a", "b"} - {node}
    record = made.ledger.records["r"]
    assert (record.evictions, record.tries, record.submitted) == (1, 2, 0.0)
    give(made, "drain", node=next(iter(where(made, "r"))))
    assert made.ledger.records["r"].state == "waiting"


def test_jobs_on_failed_cards_move_and_healed_cards_are_granted_again() -> None:
    made = book(job("r", cards_per_pod=8), cluster="[{name: a, kind: gpu-8}]")
    give(made, "fail", node="a", cards=(3,))
    record = made.ledger.records["r"]
    assert (record.state, record.note) == ("waiting", "cards of a failed")
    assert made.scheduler.why("r").reason.startswith("needs 8 cards")  # type: ignore[union-attr]
    give(made, "heal", node="a")
    assert made.ledger.records["r"].state == "running"
    assert made.ledger.failed == {}


def test_a_held_job_is_passed_by_and_keeps_the_time_it_came() -> None:
    made = book(*(job(n, cards_per_pod=8, pods=2) for n in ("r", "first", "second")))
    give(made, "hold", job="first", why="no data")
    assert made.ledger.records["first"].note == "held by ann: no data"
    made.end("r", 100.0)
    assert made.ledger.records["second"].state == "running"
    give(made, "release", at=200.0, job="first")
    assert made.ledger.records["first"].state == "waiting"
    assert made.ledger.records["first"].submitted == 0.0


def test_a_job_sent_back_starts_again_or_is_held() -> None:
    made = book(job("r", cards_per_pod=8))
    give(made, "requeue", job="r")
    assert (made.ledger.records["r"].state, made.ledger.records["r"].tries) == ("running", 2)
    give(made, "requeue", job="r", hold=True, why="NaN")
    assert made.ledger.records["r"].state == "held"
    assert int(made.scheduler.state.free[0]) == 255
    assert len(made.ledger.leaving()) == 2  # the controller has not put them away yet


def test_another_priority_changes_who_is_next() -> None:
    made = book(*(job(n, cards_per_pod=8, pods=2) for n in ("r", "first", "second")))
    give(made, "priority", job="second", priority=5)
    made.end("r", 100.0)
    assert made.ledger.records["second"].state == "running"
    with pytest.raises(JoyError, match="is done"):
        give(made, "priority", job="r", priority=5)


@pytest.mark.parametrize(
    ("verb", "more", "says"),
    [
        ("drain", {"node": "c"}, "no node 'c'"),
        ("undrain", {"node": "a"}, "neither drained nor cordoned"),
        ("fail", {"node": "a", "cards": (9,)}, "has no card 9"),
        ("fail", {"node": "a"}, "no card is named"),
        ("heal", {"node": "a", "cards": (1,)}, "is not failed"),
        ("hold", {"job": "r"}, "only a waiting job"),
        ("hold", {"job": "x"}, "no job 'x'"),
        ("release", {"job": "r"}, "not held"),
        ("requeue", {"job": "w"}, "only a running job"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(
    verb: str, more: dict[str, Any], says: str
) -> None:
    made = book(job("r", cards_per_pod=8, pods=2), job("w", cards_per_pod=8))
    before = made.ledger.last
    with pytest.raises(JoyError, match=says):
        give(made, verb, **more)
    assert made.ledger.last == before


def test_other_quotas_are_tried_before_they_are_in_force() -> None:
    queues = [queue("own", max=8), queue("guest", eviction="over-deserved")]
    made = book(
        job("g", cards_per_pod=8, queue="guest"),
        job("o1", cards_per_pod=8, queue="own"),
        job("o2", cards_per_pod=8, queue="own"),
        queues=queues,
    )
    other = [queue("own", min=16, max=16), queue("guest", eviction="over-deserved")]
    change = compare_quotas(made.ledger, made.cluster, other, {}, 60.0)
    assert (change.starts, change.stops) == (("o2",), ("g",))
    assert change.changes == (
        "queue own: max 8 cards -> 16 cards",
        "queue own: min none -> 16 cards",
    )
    assert made.ledger.records["g"].state == "running"
    less = [queue("own", max=4), queue("guest", eviction="over-deserved")]
    note, _ = compare_quotas(made.ledger, made.cluster, less, {}, 60.0).notes
    assert note.startswith("queue own uses 8 of 4 (cards)")
    with pytest.raises(JoyError, match="guarantee 17"):
        compare_quotas(made.ledger, made.cluster, [queue("own", min=17), queues[1]], {}, 60.0)
    with pytest.raises(JoyError, match="'guest' is missing"):
        compare_quotas(made.ledger, made.cluster, [queue("own")], {}, 60.0)
    assert compare_quotas(made.ledger, made.cluster, queues, {}, 60.0).changes == ()


def test_a_card_that_a_smaller_node_lacks_cannot_fail() -> None:
    made = book(cluster="[{name: n, kind: gpu-8, cards: 4}]")
    with pytest.raises(JoyError, match="no card 6"):
        give(made, "fail", node="n", cards=(6,))


def test_a_second_order_without_a_reason_keeps_the_first_one() -> None:
    made = book()
    give(made, "drain", node="a", why="fan")
    give(made, "cordon", node="a")
    assert made.ledger.cordoned["a"] == "fan"


def test_a_held_job_learns_how_the_one_before_it_ended() -> None:
    made = book(job("a"), job("b", after=["a"]), job("c", after=["a"]))
    give(made, "hold", job="b")
    made.end("a", 100.0)
    give(made, "release", at=200.0, job="b")
    assert made.ledger.records["b"].state == made.ledger.records["c"].state == "running"


def test_other_quotas_name_what_they_leave_behind() -> None:
    big = [job(name, cards_per_pod=8, pods=2, queue="q") for name in ("r", "w")]
    made = book(*big, queues=[queue("q", max=16), queue("p")])
    change = compare_quotas(made.ledger, made.cluster, [queue("q", max=8), queue("p")], {}, 50.0)
    assert any(note.startswith("job w can never start then") for note in change.notes)
