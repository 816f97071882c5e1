"""Queues, eviction, reservation and explanations of the scheduler, event by event."""

from __future__ import annotations

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import inventory, jobs, plan, policies
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import (
    Cancelled,
    CardsFailed,
    ClusterTick,
    Ended,
    Evict,
    NodeBack,
    NodeLost,
    Start,
    Submitted,
)
from joymigrate.run.cluster.foresight import Enough, foresee
from joymigrate.run.cluster.scheduler import Scheduler
from tests.run.cluster.cases import evicted, job, nodes, queue, scheduler, started, submit

TWO = "[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]"


def test_a_job_of_several_tasks_leaves_no_rule_behind_for_one_of_a_task() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-2, leaf: l0}, {name: b, kind: gpu-2, leaf: l1}]"))
    two = [{"pods": 3, "cards_per_pod": 1, "kind": "gpu-2"}, {"pods": 1, "cards_per_pod": 1}]
    submit(run, job("several", "gpu-2", tasks=two, leaf="one"))
    assert submit(run, job("one", "gpu-2", pods=3, cards_per_pod=1, leaf="one")) == []


def test_a_gang_starts_whole_or_not_at_all() -> None:
    run = scheduler(nodes(TWO))
    assert started(submit(run, job("big", pods=3, cards_per_pod=8))) == []
    assert run.why("big").code == "size_total"
    assert started(submit(run, job("fits", pods=2, cards_per_pod=8))) == ["fits"]
    assert started(submit(run, job("late", pods=1, cards_per_pod=1))) == []
    assert run.why("late").reason == "needs 1 cards of gpu-8, 0 are free"


def test_max_is_never_broken_and_says_which_queue() -> None:
    run = scheduler(nodes(TWO), queue("q", max={"gpu-8": 6}))
    assert started(submit(run, job("x", queue="q", cards_per_pod=4))) == ["x"]
    assert started(submit(run, job("y", queue="q", cards_per_pod=4))) == []
    assert run.why("y").code == "max"
    assert "8 of its MAX 6" in run.why("y").reason
    assert started(submit(run, job("z", queue="q", cards_per_pod=2))) == ["z"]
    assert started(submit(run, job("never", queue="q", cards_per_pod=8))) == []
    assert run.why("never").permanent


def test_a_claim_inside_min_stops_what_was_lent_in_the_same_cycle() -> None:
    run = scheduler(nodes(TWO), queue("owner", min=8), queue("guest", min=8))
    submit(run, *(job(f"g{i}", queue="guest", cards_per_pod=4) for i in range(4)))
    actions = submit(run, job("claim", queue="owner", cards_per_pod=8))
    assert started(actions) == ["claim"]
    assert sorted(evicted(actions)) in (["g0", "g1"], ["g2", "g3"])
    assert evicted(actions) == sorted(evicted(actions), reverse=True)[:2] or len(actions) == 3


def test_nothing_is_stopped_when_the_claim_would_not_fit_anyway() -> None:
    """Eight scattered one-card jobs: freeing cards beside foreign ones gives no whole node."""
    cluster = nodes("[{name: a, kind: gpu-8, used: [0]}, {name: b, kind: gpu-8, used: [7]}]")
    run = scheduler(cluster, queue("owner", min=8), queue("guest"))
    submit(run, *(job(f"g{i}", queue="guest", cards_per_pod=1) for i in range(14)))
    actions = submit(run, job("claim", queue="owner", cards_per_pod=8))
    assert actions == []
    assert run.why("claim").code in ("cards", "shape")


def test_eviction_frees_one_ring_not_scattered_cards() -> None:
    cluster = nodes("[{name: a, kind: ascend-910-8}]")
    run = scheduler(cluster, queue("owner", min=4), queue("guest"))
    submit(run, *(job(f"g{i}", "ascend-910-8", queue="guest", cards_per_pod=2) for i in range(4)))
    actions = submit(run, job("claim", "ascend-910-8", queue="owner", cards_per_pod=4))
    assert started(actions) == ["claim"]
    assert len(evicted(actions)) == 2
    start = next(a for a in actions if isinstance(a, Start))
    assert start.placement[0].mask in (0x0F, 0xF0)


def test_a_queue_that_is_never_stopped_may_not_borrow_the_min_of_others() -> None:
    run = scheduler(nodes(TWO), queue("owner", min=8), queue("guest", eviction="never"))
    submit(run, job("g0", queue="guest", cards_per_pod=8))
    assert started(submit(run, job("g1", queue="guest", cards_per_pod=8))) == []
    assert run.why("g1").code == "min"
    assert "owner" in run.why("g1").reason
    assert started(submit(run, job("claim", queue="owner", cards_per_pod=8))) == ["claim"]


def test_priority_stops_lower_priority_only_where_the_queue_allows_it() -> None:
    for eviction, stopped in (("lower-priority", ["low"]), ("over-deserved", []), ("never", [])):
        run = scheduler(nodes("[{name: a, kind: gpu-8}]"), queue("q", eviction=eviction))
        submit(run, job("low", queue="q", cards_per_pod=8))
        actions = submit(run, job("high", queue="q", cards_per_pod=8, priority=5))
        assert evicted(actions) == stopped, eviction


def test_min_runtime_protects_a_job_that_has_just_started() -> None:
    q = queue("q", eviction="lower-priority", min_runtime=10)
    run = scheduler(nodes("[{name: a, kind: gpu-8}]"), q)
    submit(run, job("low", queue="q", cards_per_pod=8))
    high = job("high", queue="q", cards_per_pod=8, priority=5)
    assert evicted(run.on(Submitted(high, 60.0))) == []
    assert evicted(submit(run, job("x", queue="q", cards_per_pod=8, priority=6), at=601.0)) == [
        "low"
    ]


def test_one_budget_over_gpu_and_npu_counts_with_weights() -> None:
    cluster = nodes("[{name: g, kind: gpu-8}, {name: n, kind: ascend-910b-8}]")
    run = Scheduler(cluster, [queue("q", max=10)], weights={"npu": 0.5})
    assert started(submit(run, job("g", queue="q", cards_per_pod=6))) == ["g"]
    assert started(submit(run, job("n", "ascend-910b-8", queue="q", cards_per_pod=8))) == ["n"]
    assert started(submit(run, job("o", queue="q", cards_per_pod=1))) == []


def test_children_share_their_parents_max_and_min() -> None:
    cluster = nodes(TWO)
    queues = (
        queue("dept", min=8, max=12),
        queue("one", parent="dept", min=4),
        queue("two", parent="dept"),
        queue("guest"),
    )
    run = scheduler(cluster, *queues)
    submit(run, job("a", queue="one", cards_per_pod=8))
    assert started(submit(run, job("b", queue="two", cards_per_pod=8))) == []
    assert run.why("b").facts["queue"] == "dept"


def test_a_guarantee_beyond_the_cluster_is_refused() -> None:
    with pytest.raises(JoyError, match="guarantee 20"):
        scheduler(nodes(TWO), queue("a", min=10), queue("b", min=10))


def test_two_npu_kinds_and_gpus_do_not_block_each_other() -> None:
    cluster = nodes(
        "[{name: g, kind: gpu-8}, {name: n, kind: ascend-910b-8}, {name: o, kind: ascend-910-8}]"
    )
    run = scheduler(cluster)
    submit(run, job("g1", cards_per_pod=8), job("g2", cards_per_pod=8))
    assert started(submit(run, job("n1", "ascend-910b-8", cards_per_pod=8))) == ["n1"]
    assert started(submit(run, job("o1", "ascend-910-8", cards_per_pod=8))) == ["o1"]


def test_six_and_two_free_in_two_rings_are_no_eight() -> None:
    cluster = nodes("[{name: n, kind: ascend-910b-16, used: [0, 1, 8, 9, 10, 11, 12, 13]}]")
    run = scheduler(cluster)
    submit(run, job("eight", "ascend-910b-16", cards_per_pod=8))
    assert run.why("eight").code == "shape"
    assert "no ring has 8" in run.why("eight").reason


def test_the_waiting_head_gets_its_cards_and_short_jobs_fill_the_gap() -> None:
    run = scheduler(nodes(TWO))
    submit(run, job("long", cards_per_pod=8, minutes=100), job("half", cards_per_pod=4, minutes=60))
    submit(run, job("head", pods=2, cards_per_pod=8, minutes=10))
    assert started(submit(run, job("short", cards_per_pod=2, minutes=50))) == ["short"]
    assert started(submit(run, job("slow", cards_per_pod=2, minutes=500))) == []
    assert run.why("slow").code == "held"
    for name, at in (("short", 3000.0), ("half", 3600.0)):
        assert started(run.on(Ended(name, at))) == []
    assert started(run.on(Ended("long", 6000.0))) == ["head"]
    assert started(run.on(Ended("head", 6600.0))) == ["slow"]


def held_for_a_guest() -> Scheduler:
    """Node a runs until minute 100; b is free, and held for a gang that needs both."""
    run = scheduler(nodes(TWO), queue("owner", min=8), queue("guest", min=0), queue("vip"))
    long = job("long", queue="guest", cards_per_pod=8, minutes=100)
    head = job("head", queue="guest", pods=2, cards_per_pod=8, minutes=10)
    assert started(submit(run, long, head)) == ["long"]
    return run


def test_cards_held_for_one_job_are_free_for_those_that_go_before_it() -> None:
    for claim in (
        job("claim", queue="owner", cards_per_pod=8),  # inside MIN
        job("claim", queue="guest", cards_per_pod=8, priority=1),
    ):
        actions = submit(held_for_a_guest(), claim)
        assert (started(actions), evicted(actions)) == (["claim"], [])  # b will do
    equal = held_for_a_guest()
    assert submit(equal, job("equal", queue="guest", cards_per_pod=8)) == []
    assert equal.why("equal").code == "held"


def test_a_hold_whose_cards_went_to_a_higher_job_is_made_anew() -> None:
    run = held_for_a_guest()
    submit(run, job("claim", queue="guest", cards_per_pod=8, priority=1, minutes=150))
    fits = job("fits", queue="guest", cards_per_pod=8, minutes=50)  # from 100 to 150
    late = job("late", queue="guest", cards_per_pod=8, minutes=51)
    assert submit(run, late, fits) == []
    assert started(run.on(Ended("long", 6000.0))) == ["fits"]  # the gang waits for minute 150


def test_a_claim_does_not_stop_a_job_for_cards_that_are_held_for_an_equal_claim() -> None:
    """`first` claims its MIN, but those in its way have just started; `second` must not take
    what is held for it, nor stop somebody in vain."""
    guest = queue("guest", min=0, min_runtime=60)
    run = scheduler(nodes(TWO), queue("owner", min=16), guest, queue("old", min=0))
    half = job("half", queue="old", cards_per_pod=4, minutes=500)
    young = job("young", queue="guest", cards_per_pod=8, minutes=100)
    submit(run, half, young)
    assert started(submit(run, job("first", queue="owner", pods=2, cards_per_pod=8))) == []
    actions = submit(run, job("second", queue="owner", cards_per_pod=4))
    assert (started(actions), evicted(actions)) == ([], [])
    assert run.why("second").code == "held"


def test_a_lost_node_sends_its_gangs_to_the_head_of_the_queue() -> None:
    run = scheduler(nodes(TWO))
    submit(run, job("a", cards_per_pod=8), job("b", cards_per_pod=4), job("c", cards_per_pod=8))
    actions = run.on(NodeLost("a", 10.0))
    assert evicted(actions) == ["a"]
    assert started(run.on(Ended("b", 20.0))) == ["a"]
    assert started(run.on(NodeBack("a", at=30.0))) == ["c"]


def test_failed_cards_are_not_used_again() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8}]"))
    submit(run, job("a", cards_per_pod=4))
    actions = run.on(CardsFailed("a", (1,), 5.0))
    assert [type(action) for action in actions] == [Evict, Start]
    assert actions[1].placement[0].mask & 0b10 == 0


def test_cancelling_frees_cards_and_forgets_waiting_jobs() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8}]"))
    submit(run, job("a", cards_per_pod=8), job("b", cards_per_pod=8), job("c", cards_per_pod=8))
    run.on(Cancelled("b"))
    assert started(run.on(Cancelled("a"))) == ["c"]
    assert run.waiting == {}


def test_mixed_kinds_in_one_job_start_together() -> None:
    cluster = nodes("[{name: g, kind: gpu-8}, {name: n, kind: ascend-910b-8, used: [0, 1]}]")
    run = scheduler(cluster)
    tasks = [
        {"name": "actor", "kind": "gpu-8", "pods": 2, "cards_per_pod": 4},
        {"name": "learner", "kind": "ascend-910b-8", "cards_per_pod": 6},
    ]
    assert started(submit(run, job("rl", tasks=tasks))) == ["rl"]
    more = [{**tasks[0], "pods": 1}, tasks[1]]
    assert started(submit(run, job("again", tasks=more))) == []
    assert run.state.free.tolist() == [0, 0]


def test_accepted_kinds_are_tried_in_order() -> None:
    cluster = nodes("[{name: g, kind: gpu-8, used: [0]}, {name: n, kind: ascend-910b-8}]")
    run = scheduler(cluster)
    actions = submit(run, job("either", kind=["gpu-8", "ascend-910b-8"], cards_per_pod=8))  # type: ignore[arg-type]
    assert run.state.nodes[actions[0].placement[0].node].name == "n"  # type: ignore[union-attr]


def test_illegal_sizes_name_the_legal_ones() -> None:
    cluster = nodes("[{name: n, kind: ascend-910-8}, {name: a3, kind: ascend-a3-16, count: 2}]")
    run = scheduler(cluster)
    submit(run, job("three", "ascend-910-8", cards_per_pod=3))
    assert run.why("three").reason.endswith("legal are 1, 2, 4, 8")
    submit(run, job("ones", "ascend-a3-16", pods=2, cards_per_pod=1))
    assert "for a job of several pods" in run.why("ones").reason


def test_numa_keeps_a_pod_on_one_side() -> None:
    cluster = nodes("[{name: g, kind: gpu-8, used: [0, 1], numa: [[0, 1, 2, 3], [4, 5, 6, 7]]}]")
    run = scheduler(cluster)
    actions = submit(run, job("four", cards_per_pod=4), job("one", cards_per_pod=3, numa="one"))
    assert actions[0].placement[0].mask == 0xF0  # type: ignore[union-attr]
    assert run.why("one") is not None


def test_running_jobs_of_the_file_are_taken_as_they_stand() -> None:
    run = scheduler(nodes(TWO), queue("owner", min=8), queue("guest"))
    held = [{"node": "a", "cards": [0, 1, 2, 3]}]
    submit(run, job("old", queue="guest", cards_per_pod=4, running=held))
    assert int(run.state.free[0]) == 0xF0
    with pytest.raises(JoyError, match="not free"):
        submit(run, job("other", cards_per_pod=4, running=held))


def test_reserved_nodes_serve_their_queue_only() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8, reserved: vip}, {name: b, kind: gpu-8}]"))
    assert started(submit(run, job("x", cards_per_pod=8), job("y", cards_per_pod=8))) == ["x"]
    assert run.running["x"].placement[0].node == 1
    assert started(submit(run, job("z", queue="vip", cards_per_pod=8))) == ["z"]


def test_without_stated_ends_cards_are_held_only_after_a_long_wait() -> None:
    run = scheduler(nodes(TWO))
    submit(run, job("long", cards_per_pod=8), job("head", pods=2, cards_per_pod=8))
    assert started(submit(run, job("early", cards_per_pod=2), at=60)) == ["early"]
    assert started(submit(run, job("late", cards_per_pod=2), at=7200)) == ["late"]
    run.on(Ended("late", 7300.0))
    assert started(submit(run, job("later", cards_per_pod=2), at=7400)) == []
    assert run.why("later").code == "held"


def test_one_job_ends_where_only_one_is_in_the_way() -> None:
    cluster = inventory.from_data({"nodes": [{"name": "g", "kind": "gpu-8"}]})
    held = {"name": "a", "cards_per_pod": 8, "running": [{"node": "g", "cards": list(range(8))}]}
    load = jobs.from_data({"jobs": [held, {"name": "b", "cards_per_pod": 8}]})
    (waiting,) = plan.plan(cluster, load)["waiting"]
    assert waiting["frees"].endswith("enough when a ends")


def test_a_reservation_waits_only_for_jobs_on_nodes_that_will_do() -> None:
    """Shorter jobs on the other kind end first and make no room: they are not named."""
    cluster = inventory.from_data(
        {"nodes": [{"name": "g", "kind": "gpu-8"}, {"name": "n", "kind": "ascend-910b-8"}]}
    )
    held = [
        {"name": "other", "kind": "ascend-910b-8", "cards_per_pod": 8, "minutes": 5,
         "running": [{"node": "n", "cards": list(range(8))}]},
        {"name": "mine", "kind": "gpu-8", "cards_per_pod": 8, "minutes": 60,
         "running": [{"node": "g", "cards": list(range(8))}]},
    ]  # fmt: skip
    load = jobs.from_data({"jobs": [*held, {"name": "b", "kind": "gpu-8", "cards_per_pod": 4}]})
    (waiting,) = plan.plan(cluster, load)["waiting"]
    assert waiting["frees"].endswith("enough when mine ends (in 60 minutes)")


def test_a_later_job_of_the_same_kind_fills_the_gap_that_the_first_one_is_too_long_for() -> None:
    run = scheduler(nodes(TWO))
    submit(run, job("long", cards_per_pod=8, minutes=100), job("half", cards_per_pod=4, minutes=60))
    submit(run, job("head", pods=2, cards_per_pod=8))  # will start at minute 100
    late, fits = (
        job("late", cards_per_pod=2, minutes=101),
        job("fits", cards_per_pod=2, minutes=100),
    )
    assert started(submit(run, late, job("endless", cards_per_pod=2), fits)) == ["fits"]
    assert set(run.waiting) == {"head", "late", "endless"}
    again = job("again", cards_per_pod=2, minutes=90)
    assert started(submit(run, again, at=600.0)) == ["again"]  # ends at the same moment
    assert started(submit(run, job("no", cards_per_pod=2, minutes=91), at=600.0)) == []


def test_a_job_that_ran_before_ends_the_sooner() -> None:
    held = [{"node": "a", "cards": [*range(8)]}]
    old = job("old", cards_per_pod=8, minutes=60, running=held, ran_minutes=50)
    run = scheduler(nodes("[{name: a, kind: gpu-8}]"))
    submit(run, old, at=6000.0)
    submit(run, job("next", cards_per_pod=8), at=6000.0)
    assert foresee(run, "next", 6000.0).enough == Enough((("old", 600.0),))


def test_two_pods_of_a_running_job_never_share_a_card() -> None:
    run = scheduler(nodes(TWO))
    apart = [{"node": "a", "cards": [0, 1]}, {"node": "b", "cards": [0, 1]}]
    beside = [{"node": "a", "cards": [2, 3]}, {"node": "a", "cards": [4, 5]}]
    over = [{"node": "a", "cards": [6, 7]}, {"node": "a", "cards": [6, 7]}]
    gang = {"pods": 2, "cards_per_pod": 2}
    submit(run, job("apart", running=apart, **gang), job("beside", running=beside, **gang))
    assert run.state.free.tolist() == [0b11000000, 0b11111100]
    with pytest.raises(JoyError, match="not free"):
        submit(run, job("over", running=over, **gang))


def test_a_plan_names_five_of_the_jobs_that_must_end_and_counts_the_others() -> None:
    cluster = nodes("[{name: a, kind: gpu-8}]")
    held = [
        {"name": f"r{i}", "cards_per_pod": 1, "minutes": 10 + i,
         "running": [{"node": "a", "cards": [i]}]}
        for i in range(8)
    ]  # fmt: skip
    load = jobs.from_data({"jobs": [*held, {"name": "all", "cards_per_pod": 8}]})
    (waiting,) = plan.plan(cluster, load)["waiting"]
    assert waiting["frees"].endswith(
        "; enough when r0, r1, r2, r3, r4 and 3 more end (in 17 minutes)"
    )
    five = jobs.from_data({"jobs": [*held, {"name": "some", "cards_per_pod": 5}]})
    (waiting,) = plan.plan(cluster, five)["waiting"]
    assert waiting["frees"].endswith("; enough when r0, r1, r2, r3, r4 end (in 14 minutes)")


def test_a_plan_holds_cards_for_the_first_job_and_says_so_to_the_others() -> None:
    cluster = nodes(TWO)
    held = {"name": "r", "cards_per_pod": 8, "minutes": 30,
            "running": [{"node": "a", "cards": [*range(8)]}]}  # fmt: skip
    wanted = [
        {"name": "head", "pods": 2, "cards_per_pod": 8},
        {"name": "tail", "cards_per_pod": 2, "minutes": 60},
        {"name": "quick", "cards_per_pod": 4, "minutes": 30},
    ]
    found = plan.plan(cluster, jobs.from_data({"jobs": [held, *wanted]}))
    assert [item["job"] for item in found["placements"]] == ["quick"]
    waiting = {item["job"]: item for item in found["waiting"]}
    assert (waiting["head"]["code"], waiting["tail"]["code"]) == ("cards", "held")


def test_a_plan_tells_what_it_would_stop_and_for_whom() -> None:
    held = {"name": "guest", "queue": "guest", "cards_per_pod": 8,
            "running": [{"node": "a", "cards": [*range(8)]}]}  # fmt: skip
    load = jobs.from_data(
        {
            "queues": [{"name": "owner", "min": 8}, {"name": "guest", "min": 0}],
            "jobs": [held, {"name": "claim", "queue": "owner", "cards_per_pod": 8}],
        }
    )
    found = plan.plan(nodes("[{name: a, kind: gpu-8}]"), load)
    assert [item["job"] for item in found["placements"]] == ["claim"]
    assert [item["job"] for item in found["waiting"]] == ["guest"]
    assert found["evicted"] == ["guest"]
    assert found["evictions"][0]["by"] == "claim"


LEAVES = """[
  {name: a, kind: gpu-8, count: 4, leaf: la},
  {name: b, kind: gpu-8, count: 3, leaf: lb},
  {name: c, kind: gpu-8, count: 2, leaf: lc},
]"""


@pytest.mark.parametrize(
    ("pods", "leaves"),
    [
        (4, [("la", 4)]),
        (5, [("la", 4), ("lc", 1)]),  # the rest goes where least stays open
        (6, [("la", 4), ("lc", 2)]),
        (7, [("la", 4), ("lb", 3)]),
        (8, [("la", 4), ("lb", 3), ("lc", 1)]),
        (9, [("la", 4), ("lb", 3), ("lc", 2)]),
    ],
)
def test_a_gang_larger_than_a_leaf_fills_whole_leaves_and_one_rest(
    pods: int, leaves: list[tuple[str, int]]
) -> None:
    run = scheduler(nodes(LEAVES))
    submit(run, job("gang", pods=pods, cards_per_pod=8, leaf="fill"))
    used = [run.state.nodes[grant.node].leaf for grant in run.running["gang"].placement]
    assert sorted((leaf, used.count(leaf)) for leaf in set(used)) == leaves
    assert used == sorted(used)  # ranks follow the network


def test_a_gang_never_gets_a_card_twice_when_its_rest_lies_outside_the_leaves() -> None:
    run = scheduler(
        nodes("[{name: a, kind: gpu-8, count: 3, leaf: l}, {name: b, kind: gpu-8, count: 3}]")
    )
    submit(run, job("gang", pods=4, cards_per_pod=8, leaf="fill"))
    used = [run.state.nodes[grant.node].name for grant in run.running["gang"].placement]
    assert sorted(used)[:3] == ["a-0", "a-1", "a-2"]
    assert len(set(used)) == 4
    assert run.state.free.tolist().count(0) == 4


def test_one_leaf_as_a_must_waits_and_says_how_many_pods_are_lacking() -> None:
    run = scheduler(nodes(LEAVES))
    submit(run, job("gang", pods=5, cards_per_pod=8, leaf="one"))
    assert run.refused["gang"].code == "leaf_never"  # no leaf has five nodes
    assert run.refused["gang"].facts["fits"] == 4
    assert started(submit(run, job("four", pods=4, cards_per_pod=8, leaf="one"))) == ["four"]
    assert submit(run, job("again", pods=4, cards_per_pod=8, leaf="one")) == []
    refusal = run.why("again")
    assert refusal is not None
    assert (refusal.code, refusal.facts["fits"], refusal.facts["lacking"]) == ("leaf", 3, 1)


def test_shares_of_several_pods_say_how_many_fit() -> None:
    run = scheduler(nodes("[{name: n, kind: gpu-8}]"))
    submit(run, job("many", pods=20, cards_per_pod=0.4))
    assert run.refused["many"].code == "shares_total"
    submit(run, job("one", cards_per_pod=1))
    submit(run, job("some", pods=16, cards_per_pod=0.4))
    refusal = run.why("some")
    assert refusal is not None
    assert (refusal.code, refusal.facts["fits"], refusal.facts["lacking"]) == ("shares", 14, 2)


def test_a_block_that_no_super_pod_holds_is_refused() -> None:
    cluster = nodes("[{name: n, kind: ascend-a3-16, count: 4, per_superpod: 2}]")
    run = scheduler(cluster)
    submit(run, job("wide", "ascend-a3-16", pods=3, cards_per_pod=16, sp_block=48))
    assert run.refused["wide"].code == "block"
    assert "the super-pods hold 0" in run.refused["wide"].reason


def test_several_wide_jobs_have_cards_held_where_there_are_nodes_enough() -> None:
    """A stream of small jobs does not keep the second wide job back."""
    run = scheduler(nodes("[{name: n, kind: gpu-8, count: 10}]"))
    for number in range(10):
        submit(run, job(f"r{number}", cards_per_pod=7, minutes=10 * (number + 1)))
    for number in range(3):
        submit(run, job(f"w{number}", cards_per_pod=8, minutes=60, queue=f"q{number}"))
    holds = run.admission.holds
    assert [hold.entry.job.name for hold in holds] == ["w0", "w1"]  # one for every five nodes
    assert not (holds[0].mask & holds[1].mask).any()
    assert [hold.until for hold in holds] == [600, 1200]
    small = [job(f"s{number}", cards_per_pod=1, minutes=100, queue="s") for number in range(10)]
    assert len([name for one in small for name in started(submit(run, one))]) == 8
    assert started(run.on(Ended("r0", 600))) == ["w0"]
    assert started(run.on(Ended("r1", 1200))) == ["w1"]


def test_cards_are_held_for_one_job_alone_where_nobody_knows_until_when() -> None:
    """Holds without an end would keep cards of many nodes from all others for days."""
    cluster = nodes("[{name: n, kind: gpu-8, count: 10}]")
    run = Scheduler(
        cluster, (), policies.get("topology"), settings=ClusterSettings(hold_blind_after=0)
    )
    for number in range(10):
        submit(run, job(f"r{number}", cards_per_pod=7))
    for number in range(2):
        submit(run, job(f"w{number}", cards_per_pod=8, queue=f"q{number}"))
    assert [hold.entry.job.name for hold in run.admission.holds] == ["w0"]
    small = [job(f"s{number}", cards_per_pod=1, queue="s") for number in range(10)]
    assert len([name for one in small for name in started(submit(run, one))]) == 9


def test_a_gang_goes_to_the_tightest_leaf_that_holds_it() -> None:
    run = scheduler(nodes(LEAVES))
    submit(run, job("pair", pods=2, cards_per_pod=8))
    assert {run.state.nodes[g.node].leaf for g in run.running["pair"].placement} == {"lc"}
    submit(run, job("three", pods=3, cards_per_pod=8))
    assert {run.state.nodes[g.node].leaf for g in run.running["three"].placement} == {"lb"}


def test_cards_are_held_for_the_first_job_of_every_kind_of_node() -> None:
    """A gang that waits for NPUs holds no GPU back, and one for GPUs has a hold of its own."""
    cluster = nodes("[{name: g, kind: gpu-8, count: 2}, {name: n, kind: ascend-910b-8, count: 2}]")
    run = scheduler(cluster)
    submit(run, job("n0", "ascend-910b-8", cards_per_pod=4, minutes=600))
    submit(run, job("g0", cards_per_pod=4, minutes=30))
    submit(run, job("npus", "ascend-910b-8", pods=2, cards_per_pod=8))
    submit(run, job("gpus", pods=2, cards_per_pod=8))
    assert [hold.entry.job.name for hold in run.admission.holds] == ["npus", "gpus"]
    assert started(submit(run, job("long", cards_per_pod=4, minutes=60))) == []
    assert run.why("long").facts["head"] == "gpus"
    assert started(submit(run, job("short", cards_per_pod=4, minutes=20))) == ["short"]
    assert started(run.on(Ended("g0", 30 * 60))) == []
    assert started(run.on(Ended("short", 30 * 60))) == ["gpus"]


def test_a_queue_in_strict_order_starts_nothing_before_its_first_job() -> None:
    run = scheduler(nodes(TWO), queue("q", strategy="fifo"), queue("other"))
    submit(run, job("now", queue="q", cards_per_pod=8))
    assert started(submit(run, job("big", queue="q", pods=2, cards_per_pod=8, minutes=10))) == []
    assert started(submit(run, job("small", queue="q", cards_per_pod=1, minutes=1))) == []
    assert run.why("small").reason == "queue q works in strict order and job big is before it"
    free = job("free", queue="other", cards_per_pod=1, minutes=1)
    assert started(submit(run, free)) == ["free"]
    assert started(run.on(Cancelled("big", 1.0))) == ["small"]


def test_a_higher_priority_is_first_in_strict_order() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8}]"), queue("q", strategy="fifo"))
    submit(run, job("now", queue="q", cards_per_pod=8))
    submit(run, *(job(f"low{i}", queue="q", cards_per_pod=4) for i in range(2)))
    submit(run, job("high", queue="q", cards_per_pod=8, priority=1))
    assert run.why("low0").facts["head"] == "high"
    assert started(run.on(Ended("now", 1.0))) == ["high"]
    assert started(run.on(Ended("high", 2.0))) == ["low0", "low1"]


@pytest.mark.parametrize("pods", [1, 3, 2000])
def test_more_pods_start_than_the_table_of_allocations_has_rows(pods: int) -> None:
    """The table holds 1,024 rows at first; nothing runs when it is full."""
    run = scheduler(nodes("[{name: a, kind: gpu-8, count: 250}]"))
    for number in range(1030 // pods + 2):
        name = f"j{number}"
        assert started(submit(run, job(name, pods=pods, cards_per_pod=1), at=number)) == [name]
        run.on(Ended(name, number + 0.5))
    assert run.state.kind_free == [2000]


@pytest.mark.parametrize("policy", policies.names())
@pytest.mark.parametrize("numa", ["prefer", "one"])
def test_a_pod_wider_than_a_numa_node_gets_its_cards_or_a_reason(policy: str, numa: str) -> None:
    cluster = nodes("[{name: g, kind: gpu-8, count: 2, numa: [[0, 1, 2, 3], [4, 5, 6, 7]]}]")
    run = scheduler(cluster, policy=policy)
    submit(run, job("wide", pods=2, cards_per_pod=6, numa=numa))
    if numa == "one":
        assert run.why("wide").code == "numa_never"
        assert run.why("wide").permanent
        return
    assert [grant.mask.bit_count() for grant in run.running["wide"].placement] == [6, 6]


@pytest.mark.parametrize("policy", policies.names())
@pytest.mark.parametrize(
    "request_",
    [
        {"pods": 4, "cards_per_pod": 4},
        {"pods": 6, "cards_per_pod": 0.5},
        {"tasks": [{"pods": 1, "cards_per_pod": 8}, {"pods": 2, "cards_per_pod": 2}]},
        {"tasks": [{"pods": 1, "cards_per_pod": 0}, {"pods": 2, "cards_per_pod": 8}]},
    ],
)
def test_one_leaf_is_one_leaf_under_every_policy(policy: str, request_: dict[str, object]) -> None:
    cluster = nodes(
        "[{name: a, kind: gpu-8, leaf: la, used: [0, 1, 2, 3, 4, 5, 6]},"
        " {name: b, kind: gpu-8, count: 2, leaf: lb},"
        " {name: c, kind: gpu-8, count: 2, leaf: lc, used: [0, 1]}, {name: d, kind: gpu-8}]"
    )
    run = scheduler(cluster, policy=policy)
    assert started(submit(run, job("gang", leaf="one", **request_))) == ["gang"]
    placement = run.running["gang"].placement
    assert len({run.state.nodes[grant.node].leaf for grant in placement}) == 1


@pytest.mark.parametrize("cards", [8, 7])
def test_the_wait_counts_by_the_square_of_the_run_time(cards: int) -> None:
    """Also between jobs that ask for different cards, which are not of one line."""
    one = nodes("[{name: a, kind: gpu-8}]")
    run = Scheduler(one, (), policies.get("topology"), settings=ClusterSettings(hold=False))
    submit(run, job("now", cards_per_pod=8, minutes=10))
    submit(run, job("old", cards_per_pod=8, minutes=40))
    submit(run, job("new", cards_per_pod=cards, minutes=20), at=400.0)
    assert started(run.on(Ended("now", 600.0))) == ["new"]


@pytest.mark.parametrize(
    ("policy", "kind", "minutes", "node"),
    [
        ("topology", "gpu-8", 300, 0),  # there until 600 minutes whatever comes
        ("topology", "gpu-8", 10, 1),  # ends before either: the fuller one
        ("topology", "gpu-8", None, 1),
        ("binpack", "gpu-8", 300, 1),
        ("topology", "ascend-910-8", 300, 1),  # a kind with rings has an order of its own
    ],
)
def test_a_job_goes_where_it_keeps_a_node_in_use_for_the_least_of_its_time(
    policy: str, kind: str, minutes: int | None, node: int
) -> None:
    run = scheduler(nodes(f"[{{name: n, kind: {kind}, count: 3}}]"), policy=policy)
    for name, cards, ends, where in (("long", 2, 600, [0, 1]), ("short", 4, 20, [0, 1, 2, 3])):
        on = [{"node": run.state.nodes[name == "short"].name, "cards": where}]
        submit(run, job(name, kind, cards_per_pod=cards, minutes=ends, running=on))
    submit(run, job("new", kind, cards_per_pod=4, minutes=minutes))
    assert run.running["new"].placement[0].node == node


def test_ticks_of_a_cluster_on_which_nothing_changes_ask_nothing_anew() -> None:
    """Until time itself matters: after the patience a job without a run time goes first."""
    world = Scheduler(inventory.from_data({"nodes": [{"name": "n", "kind": "gpu-8"}]}))
    full, waits = (
        jobs.from_data({"jobs": [{"name": name, "kind": "gpu-8", "cards_per_pod": 8}]}).jobs[0]
        for name in ("full", "waits")
    )
    world.on_all([Submitted(full, 0.0), Submitted(waits, 0.0)])
    asked = world.decisions
    for second in range(1, 100):
        world.on(ClusterTick(float(second)))
    assert world.decisions == asked
    world.on(ClusterTick(world.settings.hold_blind_after + 1))
    assert world.decisions > asked


def test_a_stop_in_its_queue_wakes_a_job_that_lost_its_hold_in_the_same_moment() -> None:
    """It loses the hold to its queue's MAX, then a claim of another queue makes room under it."""
    queues = [
        queue("q", max=12, priority=1, eviction="lower-priority"),
        queue("z", eviction="never"),
        queue("c", eviction="never"),
    ]
    run = Scheduler(
        nodes("[{name: n, kind: gpu-8, count: 2}]"), queues, policies.get("spread"),
        settings=ClusterSettings(order="submission"),
    )  # fmt: skip
    submit(run, job("left", queue="z", cards_per_pod=4, minutes=60))
    submit(run, job("right", queue="z", cards_per_pod=3, minutes=60))
    submit(run, job("small", queue="q", cards_per_pod=1, minutes=60))
    submit(run, job("waits", queue="q", cards_per_pod=8, minutes=60))
    assert [hold.entry.job.name for hold in run.admission.holds] == ["waits"]
    assert started(submit(run, job("pair", queue="q", pods=2, cards_per_pod=4, minutes=10)))
    claim = job("claim", queue="c", cards_per_pod=5, minutes=60, priority=5)
    actions = run.on_all([Ended("small", 60), Ended("left", 60), Submitted(claim, 60)])
    assert evicted(actions) == ["pair"]
    assert started(actions) == ["claim", "waits"]


def test_a_job_that_fills_a_gap_is_tried_where_its_like_only_wait_for_a_hold() -> None:
    run = scheduler(nodes("[{name: n, kind: gpu-8, count: 10}]"))
    for number, minutes in enumerate([10, 200, *range(300, 380, 10)]):
        submit(run, job(f"r{number}", cards_per_pod=7, minutes=minutes))
    submit(run, job("x", cards_per_pod=1, minutes=400))
    submit(run, job("w0", pods=2, cards_per_pod=8, minutes=300, queue="w"))
    for name in ("w1", "h", "g"):
        submit(run, job(name, cards_per_pod=8, minutes=300, queue=name))
    assert [hold.entry.job.name for hold in run.admission.holds] == ["w0", "w1"]
    assert started(run.on(Ended("r0", 600))) == []
    short = job("short", cards_per_pod=8, minutes=5, queue="g")
    actions = run.on_all([Cancelled("w1", 4000), Ended("x", 4000), Submitted(short, 4000)])
    assert [hold.entry.job.name for hold in run.admission.holds] == ["w0", "h"]
    assert started(actions) == ["short"]
