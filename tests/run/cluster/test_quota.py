"""Who goes first, who may claim and who may be stopped: shares, MIN, deserved and MAX of queues."""

from __future__ import annotations

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster.events import Submitted
from joymigrate.run.cluster.eviction import Victim, search
from joymigrate.run.cluster.foresight import Enough, foresee
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.state import Grant, Placement
from tests.run.cluster.cases import evicted, job, nodes, queue, scheduler, started, submit

ONE = "[{name: a, kind: gpu-8}]"
TWO = "[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]"
MIXED = "[{name: g, kind: gpu-8}, {name: n, kind: ascend-910b-8}]"


def at_once(run: Scheduler, *new: object) -> list[str]:
    """Submit jobs in one moment and name those that start, in order."""
    return started(run.on_all([Submitted(one, 0.0) for one in new]))  # type: ignore[arg-type]


def ones(name: str, count: int, **more: object) -> list[object]:
    """Jobs of one card of a queue."""
    return [job(f"{name}{i}", queue=name, cards_per_pod=1, **more) for i in range(count)]


# -- shares: who goes first -----------------------------------------------------------------------


def test_queues_share_by_weight() -> None:
    run = scheduler(nodes(ONE), queue("one", weight=1), queue("three", weight=3))
    names = at_once(run, *ones("one", 8), *ones("three", 8))
    assert [sum(name.startswith(q) for name in names) for q in ("one", "three")] == [2, 6]


def test_queues_share_by_what_they_deserve() -> None:
    run = scheduler(nodes(ONE), queue("two", deserved=2), queue("six", deserved=6))
    names = at_once(run, *ones("two", 8), *ones("six", 8))
    assert [sum(name.startswith(q) for name in names) for q in ("two", "six")] == [2, 6]


def test_the_scarcest_of_what_a_queue_deserves_is_its_share() -> None:
    """Half of its GPUs and none of its NPUs is half; the other queue has a quarter."""
    deserved = {"gpu-8": 4, "npu": 8}
    run = scheduler(
        nodes(MIXED), queue("half", deserved=deserved), queue("quarter", deserved=deserved)
    )
    submit(run, job("h", queue="half", cards_per_pod=2))
    submit(run, job("q", queue="quarter", cards_per_pod=1))
    assert (run.quotas.share("half"), run.quotas.share("quarter")) == (0.5, 0.25)
    names = at_once(run, *ones("half", 1), *ones("quarter", 1))
    assert names == ["quarter0", "half0"]


def test_a_queue_that_deserves_nothing_goes_last() -> None:
    run = scheduler(nodes(ONE), queue("nothing", deserved=0), queue("some", deserved=8))
    names = at_once(run, *ones("nothing", 8), *ones("some", 8))
    assert names == [f"some{i}" for i in range(8)]


def test_a_share_counts_cards_in_card_units() -> None:
    """One NPU card counts half a GPU card: the queue with 4 of them has less than one with 3."""
    cluster = nodes(MIXED)
    run = Scheduler(cluster, [queue("npus"), queue("gpus")], weights={"npu": 0.5})
    submit(
        run,
        job("n", "ascend-910b-8", queue="npus", cards_per_pod=4),
        job("g", queue="gpus", cards_per_pod=3),
    )
    assert run.quotas.share("npus") == pytest.approx(2 / 12)
    assert run.quotas.share("gpus") == pytest.approx(3 / 12)
    assert at_once(run, *ones("gpus", 1), *ones("npus", 1)) == ["npus0", "gpus0"]


def test_a_share_falls_when_a_job_ends_and_counts_for_parents() -> None:
    run = scheduler(nodes(ONE), queue("dept"), queue("team", parent="dept"))
    submit(run, job("x", queue="team", cards_per_pod=2), job("y", queue="team", cards_per_pod=4))
    assert run.quotas.share("dept") == pytest.approx(6 / 8)
    run._end("y")
    assert (run.quotas.share("dept"), run.quotas.share("team")) == (2 / 8, 2 / 8)


def test_queue_priority_goes_before_job_priority_and_both_before_shares() -> None:
    run = scheduler(nodes(ONE), queue("front", priority=1), queue("back"))
    submit(run, job("used", queue="front", cards_per_pod=7))
    back = job("back", queue="back", cards_per_pod=1, priority=9)
    front = job("front", queue="front", cards_per_pod=1)
    assert at_once(run, back, front) == ["front"]


def test_a_job_that_waits_longer_than_a_week_goes_before_higher_priorities() -> None:
    run = scheduler(nodes(ONE))
    submit(run, job("long", cards_per_pod=8), job("old", cards_per_pod=8))
    week = 7 * 86400.0
    assert run.on(Submitted(job("urgent", cards_per_pod=8, priority=5), week + 1)) == []
    run._end("long")
    assert started(run.on_all([Submitted(job("new", cards_per_pod=8), week + 1)])) == ["old"]


# -- claims: who may have others stopped ----------------------------------------------------------


def test_inside_what_it_deserves_a_queue_takes_back_what_others_have_beyond_theirs() -> None:
    queues = queue("owner", deserved=8), queue("guest", min=2, deserved=8)
    run = scheduler(nodes(TWO), *queues)
    submit(run, *(job(f"g{i}", queue="guest", cards_per_pod=4) for i in range(4)))
    actions = submit(run, job("half", queue="owner", cards_per_pod=4))
    assert (started(actions), len(evicted(actions))) == (["half"], 1)
    actions = submit(run, job("rest", queue="owner", cards_per_pod=4))
    assert (started(actions), len(evicted(actions))) == (["rest"], 1)
    # Now both have what they deserve, and no more may be claimed.
    assert submit(run, job("greedy", queue="owner", cards_per_pod=1)) == []


def test_inside_min_a_queue_takes_what_others_only_deserve() -> None:
    queues = queue("owner", min=12), queue("guest", min=4, deserved=16)
    run = scheduler(nodes(TWO), *queues)
    submit(run, *(job(f"g{i}", queue="guest", cards_per_pod=4) for i in range(4)))
    actions = submit(run, job("claim", queue="owner", cards_per_pod=8))
    assert (started(actions), len(evicted(actions))) == (["claim"], 2)
    actions = submit(run, job("more", queue="owner", cards_per_pod=4))
    assert (started(actions), len(evicted(actions))) == (["more"], 1)
    assert len(run.by_queue["guest"]) == 1  # its own MIN


def test_of_a_queue_the_jobs_beyond_its_share_are_stopped_the_least_protected_first() -> None:
    queues = queue("owner", min=4), queue("guest", min=4)
    run = scheduler(nodes(ONE), *queues)
    submit(run, job("low", queue="guest", cards_per_pod=4))
    submit(run, job("high", queue="guest", cards_per_pod=4, priority=1))
    actions = submit(run, job("claim", queue="owner", cards_per_pod=4))
    assert (started(actions), evicted(actions)) == (["claim"], ["low"])


def test_a_job_on_a_kind_that_no_share_covers_lies_beyond_it() -> None:
    queues = queue("owner", min={"ascend-910b-8": 8}), queue("guest", min={"gpu-8": 8})
    run = scheduler(nodes(MIXED), *queues)
    submit(run, job("g", queue="guest", cards_per_pod=8))
    submit(run, job("n", "ascend-910b-8", queue="guest", cards_per_pod=8))
    actions = submit(run, job("claim", "ascend-910b-8", queue="owner", cards_per_pod=8))
    assert (started(actions), evicted(actions)) == (["claim"], ["n"])


def test_a_share_of_two_kinds_protects_jobs_on_either() -> None:
    both = {"gpu-8": 8, "ascend-910b-8": 8}
    run = scheduler(nodes(MIXED), queue("owner", deserved=16), queue("guest", min=both))
    submit(run, job("g", queue="guest", cards_per_pod=8))
    submit(run, job("n", "ascend-910b-8", queue="guest", cards_per_pod=8))
    assert submit(run, job("claim", queue="owner", cards_per_pod=8)) == []


def test_a_job_is_beyond_a_share_that_covers_only_one_of_its_kinds() -> None:
    queues = queue("owner", min={"ascend-910b-8": 8}), queue("guest", min={"gpu-8": 8})
    run = scheduler(nodes(MIXED), *queues)
    tasks = [
        {"name": "g", "kind": "gpu-8", "cards_per_pod": 4},
        {"name": "n", "kind": "ascend-910b-8", "cards_per_pod": 8},
    ]
    submit(run, job("mixed", queue="guest", tasks=tasks))
    actions = submit(run, job("claim", "ascend-910b-8", queue="owner", cards_per_pod=8))
    assert (started(actions), evicted(actions)) == (["claim"], ["mixed"])


def test_what_a_queue_deserves_must_cover_every_kind_that_it_claims() -> None:
    queues = queue("owner", deserved={"gpu-8": 8}), queue("guest", deserved=0)
    run = scheduler(nodes(MIXED), *queues)
    submit(run, job("g", queue="guest", cards_per_pod=8))
    submit(run, job("n", "ascend-910b-8", queue="guest", cards_per_pod=8))
    assert submit(run, job("npu", "ascend-910b-8", queue="owner", cards_per_pod=8)) == []
    actions = submit(run, job("gpu", queue="owner", cards_per_pod=8))
    assert (started(actions), evicted(actions)) == (["gpu"], ["g"])


def test_each_limit_on_what_a_queue_deserves_holds() -> None:
    """4 cards in all, 8 of them GPUs at most: the smaller one is the wall."""
    queues = queue("owner", deserved={"cards": 4, "gpu-8": 8}), queue("guest", deserved=0)
    run = scheduler(nodes(ONE), *queues)
    submit(run, *(job(f"g{i}", queue="guest", cards_per_pod=2) for i in range(4)))
    assert submit(run, job("six", queue="owner", cards_per_pod=6)) == []
    actions = submit(run, job("four", queue="owner", cards_per_pod=4))
    assert (started(actions), len(evicted(actions))) == (["four"], 2)


def test_what_a_sibling_has_used_of_its_min_is_not_kept_a_second_time() -> None:
    """dept 8, two 4 of it: while `two` runs its 4, `one` may claim the other 4."""
    queues = (
        queue("dept", min=8), queue("one", parent="dept"),
        queue("two", parent="dept", min=4), queue("guest", min=0),
    )  # fmt: skip
    run = scheduler(nodes(ONE), *queues)
    submit(run, job("t", queue="two", cards_per_pod=4), job("g", queue="guest", cards_per_pod=4))
    actions = submit(run, job("claim", queue="one", cards_per_pod=4))
    assert (started(actions), evicted(actions)) == (["claim"], ["g"])


def test_at_its_max_a_queue_stops_its_own_lower_priority_although_cards_are_free() -> None:
    q = queue("q", max=8, eviction="lower-priority")
    run = scheduler(nodes(TWO), q)
    submit(run, job("low", queue="q", cards_per_pod=8))
    actions = submit(run, job("high", queue="q", cards_per_pod=8, priority=1))
    assert (started(actions), evicted(actions)) == (["high"], ["low"])
    assert submit(run, job("equal", queue="q", cards_per_pod=8, priority=1)) == []


def test_a_lower_priority_of_another_queue_is_stopped_only_beyond_what_is_its_own() -> None:
    both = {"eviction": "lower-priority"}
    run = scheduler(nodes(TWO), queue("mine", **both), queue("other", min=8, **both))
    submit(run, *(job(f"o{i}", queue="other", cards_per_pod=8) for i in range(2)))
    assert submit(run, job("equal", queue="mine", cards_per_pod=8)) == []
    actions = submit(run, job("high", queue="mine", cards_per_pod=8, priority=1))
    assert (started(actions), evicted(actions)) == (["high"], ["o1"])
    assert submit(run, job("more", queue="mine", cards_per_pod=8, priority=1)) == []


def test_a_protected_queue_does_not_hide_the_one_behind_it() -> None:
    queues = queue("owner", min=8), queue("safe", eviction="never"), queue("guest", min=0)
    run = scheduler(nodes(TWO), *queues)
    submit(run, job("s", queue="safe", cards_per_pod=8), job("g", queue="guest", cards_per_pod=8))
    actions = submit(run, job("claim", queue="owner", cards_per_pod=8))
    assert (started(actions), evicted(actions)) == (["claim"], ["g"])


def test_a_claim_that_accepts_two_kinds_may_stop_jobs_on_either() -> None:
    queues = queue("owner", min=8), queue("safe", eviction="never"), queue("guest", min=0)
    run = scheduler(nodes(MIXED), *queues)
    submit(run, job("s", "ascend-910b-8", queue="safe", cards_per_pod=8))
    submit(run, job("g", queue="guest", cards_per_pod=8))
    either = job("either", kind=["gpu-8", "ascend-910b-8"], queue="owner", cards_per_pod=8)  # type: ignore[arg-type]
    actions = submit(run, either)
    assert (started(actions), evicted(actions)) == (["either"], ["g"])


def test_a_gang_is_not_stopped_when_the_cards_of_the_others_will_do() -> None:
    """Both are tried in the same order whatever that is; without `z` nothing works, without `x`
    the claim takes cards 1 and 2 instead of 0 and 1."""
    x = Victim(job("x"), (Grant(0, 0b0001), Grant(1, 0b0001)), 2.0, 2.0)
    z = Victim(job("z"), (Grant(0, 0b0110),), 1.0, 2.0)

    def attempt(gone: object) -> Placement | None:
        free = [0, 0]
        for one in gone:  # type: ignore[attr-defined]
            for grant in one.placement:
                free[grant.node] |= grant.mask
        for node, mask in enumerate(free):
            found = [card for card in range(4) if mask >> card & 1]
            if len(found) >= 2:
                return (Grant(node, sum(1 << card for card in found[:2])),)
        return None

    deal = search([x, z], attempt)
    assert deal is not None
    assert [one.job.name for one in deal.victims] == ["z"]


# -- reasons and refusals -------------------------------------------------------------------------


def test_a_broken_max_says_what_is_limited_used_and_over() -> None:
    run = scheduler(nodes(TWO), queue("all", max=6), queue("kind", max={"gpu-8": 6}))
    for name in ("all", "kind"):
        submit(run, job(f"{name}-x", queue=name, cards_per_pod=4))
        submit(run, job(f"{name}-y", queue=name, cards_per_pod=3))
    found = {name: run.why(f"{name}-y") for name in ("all", "kind")}
    assert [found[name].facts["what"] for name in found] == ["card-units", "cards of gpu-8"]
    assert {k: found["all"].facts[k] for k in ("limit", "after", "used", "over")} == {
        "limit": "6", "after": "7", "used": "4", "over": "1",
    }  # fmt: skip
    submit(run, job("exact", queue="all", cards_per_pod=6))
    assert run.why("exact").code == "max"  # it fits once the others have ended
    submit(run, job("never", queue="all", cards_per_pod=7))
    assert run.why("never").permanent


def test_what_is_kept_for_others_says_how_much_and_for_whom() -> None:
    queues = queue("owner", min=12), queue("safe", eviction="never")
    run = scheduler(nodes(TWO), *queues)
    submit(run, job("o", queue="owner", cards_per_pod=2))
    assert started(submit(run, job("s", queue="safe", cards_per_pod=4))) == ["s"]
    submit(run, job("t", queue="safe", cards_per_pod=1))
    facts = run.why("t").facts
    assert (facts["free"], facts["kept"], facts["others"]) == (10, 10, "owner")


def test_queues_in_a_circle_are_refused_whoever_asks() -> None:
    with pytest.raises(JoyError, match="its own ancestor"):
        scheduler(
            nodes(ONE), queue("a", parent="b"), queue("b", parent="c"), queue("c", parent="b")
        )


# -- when a waiting job will start ----------------------------------------------------------------


def runs(name: str, cards: list[int], minutes: int, node: str = "a") -> object:
    held = [{"node": node, "cards": cards}]
    return job(name, cards_per_pod=len(cards), minutes=minutes, running=held)


def test_a_start_is_promised_for_the_first_end_that_leaves_the_right_cards() -> None:
    """At minute 20 eight cards are free, four on each node: the job needs one whole node."""
    run = scheduler(nodes(TWO))
    halves = [*range(4)], [*range(4, 8)]
    ends = (("a", 0, 10), ("b", 0, 20), ("a", 1, 30), ("b", 1, 40))
    submit(run, *(runs(f"{n}{h}", halves[h], m, n) for n, h, m in ends))  # type: ignore[arg-type]
    submit(run, job("whole", cards_per_pod=8))
    assert foresee(run, "whole", 0.0).enough == Enough((("a0", 600.0), ("a1", 1800.0)))


def test_only_those_that_hold_its_cards_are_in_a_jobs_way() -> None:
    run = scheduler(nodes(ONE))
    submit(
        run,
        runs("early", [6, 7], 5),  # type: ignore[arg-type]
        runs("half", [0, 1, 2, 3], 10),  # type: ignore[arg-type]
        runs("rest", [4, 5], 20),  # type: ignore[arg-type]
    )
    submit(run, job("four", cards_per_pod=4))
    assert foresee(run, "four", 0.0).enough == Enough((("half", 600.0),))


def test_all_pods_of_a_gang_on_one_node_have_their_cards_held() -> None:
    run = scheduler(nodes(ONE))
    submit(run, runs("long", [0, 1, 2, 3], 60))  # type: ignore[arg-type]
    submit(run, job("pair", pods=2, cards_per_pod=4))
    assert submit(run, job("late", cards_per_pod=4)) == []
    assert run.why("late").code == "held"
    hold = run.admission.holds[0]
    assert hold is not None
    assert hold.mask.tolist() == [0xFF]


def test_a_childs_minimum_comes_before_what_its_sibling_borrowed_under_the_parents_maximum() -> (
    None
):
    queues = (
        queue("dept", max=8),
        queue("a", parent="dept", min=4),
        queue("b", parent="dept"),
    )
    run = scheduler(nodes(TWO), *queues)
    submit(run, *(job(f"b{i}", queue="b", cards_per_pod=4) for i in range(2)))
    actions = submit(run, job("claim", queue="a", cards_per_pod=4))
    assert started(actions) == ["claim"]
    assert len(evicted(actions)) == 1
    assert submit(run, job("more", queue="a", cards_per_pod=4)) == []  # beyond its MIN


def test_a_parents_minimum_protects_the_jobs_of_its_parts() -> None:
    queues = queue("dept", min=8), queue("mine", parent="dept"), queue("z", min=8), queue("o")
    run = scheduler(nodes(TWO), *queues)
    submit(
        run, job("inside", queue="mine", cards_per_pod=8), job("old", queue="o", cards_per_pod=8)
    )
    actions = submit(run, job("claim", queue="z", cards_per_pod=8))
    assert (started(actions), evicted(actions)) == (["claim"], ["old"])


def test_a_parents_minimum_is_no_protection_from_its_other_parts() -> None:
    queues = (
        queue("dept", min=16),
        queue("a", parent="dept", min=8),
        queue("b", parent="dept"),
    )
    run = scheduler(nodes(TWO), *queues)
    submit(run, *(job(f"b{i}", queue="b", cards_per_pod=8) for i in range(2)))
    actions = submit(run, job("claim", queue="a", cards_per_pod=8))
    assert started(actions) == ["claim"]
    assert len(evicted(actions)) == 1
