"""Decisions that hold between events: nothing that could start is left waiting, books are even."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster_waiting import draw
from joymigrate.run.cluster import inventory, policies
from joymigrate.run.cluster.events import (
    Cancelled,
    CardsFailed,
    ClusterTick,
    Ended,
    Event,
    Evict,
    NodeBack,
    NodeLost,
    Submitted,
)
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.scheduler import Scheduler
from tests.run.cluster.cases import evicted, job, nodes, queue, scheduler, started, submit
from tests.run.cluster.test_properties import histories

TWO = "[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]"


@given(histories(), st.sampled_from(policies.names()))
@settings(deadline=None, max_examples=60)
def test_after_an_event_looking_at_everything_again_changes_nothing(
    history: tuple[inventory.Inventory, list[Queue], list[Event]], policy: str
) -> None:
    """The scheduler tries again only what an event may have helped; a tick tries all."""
    cluster, queues, events = history
    run = Scheduler(cluster, queues, policies.get(policy))
    for event in events:
        run.on(ClusterTick(event.at))  # what only time has changed: minimum run times, holds
        run.on(event)
        assert run.on(ClusterTick(event.at)) == [], event


def test_an_end_gives_back_what_counted_against_max() -> None:
    run = scheduler(nodes(TWO), queue("q", max=8))
    submit(run, job("x", queue="q", cards_per_pod=8))
    assert submit(run, job("y", queue="q", cards_per_pod=8)) == []
    assert started(run.on(Ended("x", 60.0))) == ["y"]
    assert started(run.on(Ended("unknown", 60.0))) == []


def test_events_of_one_moment_lose_no_action() -> None:
    run = scheduler(nodes(TWO))
    submit(run, job("x", cards_per_pod=8), job("y", cards_per_pod=8))
    actions = run.on_all([NodeLost("a", 1.0), CardsFailed("b", (0,), 1.0), Cancelled("x", 1.0)])
    assert evicted(actions) == ["x", "y"]
    run = scheduler(nodes(TWO))
    submit(run, job("x", cards_per_pod=8), job("y", cards_per_pod=8))
    actions = run.on_all([Cancelled("x", 1.0), Cancelled("y", 1.0)])
    assert [action.job.name for action in actions] == ["x", "y"]


def test_a_lost_node_and_failed_cards_say_what_happened() -> None:
    run = scheduler(nodes(TWO))
    submit(run, job("x", cards_per_pod=8), job("y", cards_per_pod=8))
    lost, failed = run.on(NodeLost("a", 1.0)), run.on(CardsFailed("b", (7,), 1.0))
    whys = [action.why for action in (*lost, *failed) if isinstance(action, Evict)]
    assert whys == ["node a is lost", "cards of b failed"]


def test_a_gang_is_lost_with_one_of_its_nodes_and_others_are_not() -> None:
    run = scheduler(nodes("[{name: n, kind: gpu-8, count: 4}]"))
    submit(run, job("pair", pods=2, cards_per_pod=8), job("far", cards_per_pod=8))
    first = run.state.nodes[run.running["pair"].placement[0].node].name
    actions = run.on(NodeLost(first, 1.0))
    assert (evicted(actions), started(actions)) == (["pair"], ["pair"])
    assert not run.state.ready[run.state.number[first]]
    assert "far" in run.running
    cpu = scheduler(nodes("[{name: c, kind: cpu, cpu: 8}]"))
    submit(cpu, job("work", kind="cpu", cards_per_pod=0, cpu_per_pod=4))
    assert evicted(cpu.on(NodeLost("c", 1.0))) == ["work"]


def test_a_node_that_comes_back_keeps_what_others_use_and_what_is_broken() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8, used: [0], unhealthy: [1]}]"))
    run.on(NodeLost("a", 1.0))
    assert run.state.free.tolist() == [0]
    run.on(NodeBack("a", (2,), 2.0))
    assert run.state.free.tolist() == [0b11111000]


def test_a_clock_that_goes_backwards_changes_nothing() -> None:
    run = scheduler(nodes(TWO), queue("q", eviction="lower-priority", min_runtime=10))
    submit(run, job("low", queue="q", cards_per_pod=8), at=1000.0)
    submit(run, job("other", queue="q", cards_per_pod=8, priority=9), at=5.0)
    assert evicted(submit(run, job("high", queue="q", cards_per_pod=8, priority=5), at=5.0)) == []
    assert run.running["other"].started == 1000.0
    assert started(run.on(Ended("low", 7.0))) == ["high"]
    assert run.running["high"].started == 1000.0


def test_max_on_a_kind_holds_for_a_job_whose_kind_is_open() -> None:
    """One task may go to either kind: the limit counts where it really goes."""
    cluster = nodes("[{name: g, kind: gpu-8, used: [0, 1, 2]}, {name: n, kind: ascend-910b-8}]")
    run = scheduler(cluster, queue("q", max={"ascend-910b-8": 4}))
    fixed = {"name": "fixed", "kind": "gpu-8", "cards_per_pod": 1}
    opened = {"name": "open", "kind": ["gpu-8", "ascend-910b-8"], "cards_per_pod": 6}
    assert submit(run, job("j", queue="q", tasks=[fixed, opened])) == []
    assert run.why("j").code == "never"
    small = {**opened, "cards_per_pod": 3}
    assert started(submit(run, job("k", queue="q", tasks=[fixed, small]))) == ["k"]


def test_two_kinds_the_second_is_taken_when_max_forbids_the_first() -> None:
    cluster = nodes("[{name: g, kind: gpu-8}, {name: n, kind: ascend-910b-8}]")
    run = scheduler(cluster, queue("q", max={"gpu-8": 4}))
    either: Any = ["gpu-8", "ascend-910b-8"]
    submit(run, job("j", either, queue="q", cards_per_pod=8))
    assert run.running["j"].placement[0].node == 1
    submit(run, job("k", either, queue="q", cards_per_pod=2))
    assert run.running["k"].placement[0].node == 0
    submit(run, job("l", either, queue="q", cards_per_pod=3))
    assert run.why("l").code == "max"  # the reason of its first choice


def test_a_lone_card_is_legal_for_one_pod_and_not_for_two() -> None:
    run = scheduler(nodes("[{name: a, kind: ascend-a3-16, count: 2}]"))
    assert started(submit(run, job("one", "ascend-a3-16", cards_per_pod=1))) == ["one"]
    submit(run, job("two", "ascend-a3-16", pods=2, cards_per_pod=1))
    assert run.why("two").code == "size"
    assert "several pods" in run.why("two").reason
    submit(run, job("odd", "ascend-a3-16", cards_per_pod=3))
    assert "several pods" not in run.why("odd").reason
    submit(run, job("huge", "ascend-a3-16", cards_per_pod=17))
    assert run.why("huge").facts["nearest"] == 16


@pytest.mark.parametrize("what", ["cpu", "memory_gib"])
def test_cards_without_cpu_or_memory_beside_them_are_no_room(what: str) -> None:
    run = scheduler(nodes(f"[{{name: a, kind: gpu-8, {what}: 8}}, {{name: b, kind: gpu-8}}]"))
    wants: Any = {f"{what}_per_pod": 5}
    submit(run, job("x", pods=2, cards_per_pod=1, **wants))
    assert sorted(grant.node for grant in run.running["x"].placement) == [1, 1]
    submit(run, job("y", cards_per_pod=7, **wants), job("z", cards_per_pod=1, **wants))
    assert [run.running[name].placement[0].node for name in "yz"] == [0, 1]
    full = scheduler(nodes(f"[{{name: a, kind: gpu-8, {what}: 8}}]"))
    submit(full, job("x", cards_per_pod=1, **wants), job("y", cards_per_pod=1, **wants))
    assert full.why("y").code == "cpu"
    assert ("GiB" in full.why("y").reason) == (what == "memory_gib")


def test_a_share_of_a_card_needs_a_kind_that_can_be_shared() -> None:
    run = scheduler(nodes("[{name: n, kind: ascend-910-8}, {name: g, kind: gpu-8}]"))
    submit(run, job("npu", "ascend-910-8", cards_per_pod=0.5))
    assert run.why("npu").code == "share"
    submit(run, job("gpu", cards_per_pod=0.5))
    assert run.running["gpu"].placement[0].milli == 500


def test_a_node_that_holds_all_pods_is_preferred_to_two() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8, used: [0, 1]}, {name: b, kind: gpu-8}]"))
    submit(run, job("pair", pods=2, cards_per_pod=4))
    assert [grant.node for grant in run.running["pair"].placement] == [1, 1]


def test_a_gang_whose_leaf_does_not_matter_may_cross_leaves() -> None:
    cluster = nodes("[{name: a, kind: gpu-8, leaf: x}, {name: b, kind: gpu-8, leaf: y}]")
    for leaf, code in (("any", None), ("prefer", None), ("one", "leaf_never")):
        run = scheduler(cluster)
        submit(run, job("pair", pods=2, cards_per_pod=8, leaf=leaf))
        assert (run.why("pair").code if code else run.why("pair")) == code


def test_a_gang_in_one_leaf_may_not_spread_over_a_spine() -> None:
    spine = "[{name: a, kind: gpu-8, count: 4, per_leaf: 2, leaves_per_spine: 2}]"
    run = scheduler(nodes(spine))
    submit(run, job("three", pods=3, cards_per_pod=8, leaf="one"))
    assert run.why("three").code == "leaf_never"


def test_what_is_held_until_an_unknown_end_says_so() -> None:
    run = scheduler(nodes(TWO))
    submit(run, job("endless", cards_per_pod=8), job("head", pods=2, cards_per_pod=8))
    late = run.settings.hold_blind_after
    run.on(ClusterTick(late))
    submit(run, job("next", cards_per_pod=8), at=late)
    assert run.why("next").facts == {"head": "head", "until": "unknown"}
    timed = scheduler(nodes(TWO))
    submit(timed, job("hour", cards_per_pod=8, minutes=60), job("head", pods=2, cards_per_pod=8))
    submit(timed, job("next", cards_per_pod=8), at=600.0)
    assert timed.why("next").facts["until"] == "in 50 minutes"


def test_when_a_hold_ends_only_those_are_asked_again_whom_its_cards_or_a_hold_may_help() -> None:
    """60 ends beside 200 different jobs cost 892 decisions; asking all of them cost 1,539."""
    cluster = nodes("[{name: n, kind: gpu-8, count: 40, per_leaf: 8, cpu: 128, memory_gib: 1024}]")
    run = scheduler(cluster)
    run.on_all(Submitted(one, 0.0) for one in draw(520, 1))
    before, at, starts = run.decisions, 0.0, 0
    for _ in range(60):
        first = min(run.running.values(), key=lambda one: one.ends)
        at = max(at, first.ends)
        starts += len(started(run.on(Ended(first.entry.job.name, at))))
    assert starts == 64
    assert run.decisions - before < 1000
