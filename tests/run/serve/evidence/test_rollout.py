"""The rollout's state machine, fed by hand: events in, state and history out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import (
    PRIMARY,
    SECOND,
    AnswersCompared,
    Event,
    Health,
    LedgerGate,
    Observed,
    RolloutOrder,
    RolloutPlan,
    RolloutTick,
    Served,
)
from joymigrate.run.serve.evidence.experiment import Experiment
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.evidence.rule import EProcess

PLAN = RolloutPlan(min_step_seconds=60, min_step_pairs=0)  # pairs have tests of their own


def started(plan: RolloutPlan = PLAN) -> Rollout:
    rollout = Rollout(plan)
    rollout.handle(LedgerGate(0, True, "test"))
    rollout.handle(Health(0, SECOND, True))
    return rollout


def at(weight: float, plan: RolloutPlan = PLAN) -> Rollout:
    """A ramp that has reached `weight`."""
    rollout, now = started(plan), 0.0
    while rollout.weight < weight:
        now += 61
        rollout.handle(Served(now, SECOND, None, 1000))
    return rollout


def fail(rollout: Rollout, times: int, role: str = SECOND, now: float = 1.0) -> None:
    for _ in range(times):
        rollout.handle(Served(now, role, "status_500"))


def test_the_ramp_starts_when_the_standby_is_healthy_and_the_gate_is_open() -> None:
    rollout = Rollout(PLAN)
    assert rollout.handle(Health(0, SECOND, True))[-1].kind == "refused"
    assert (rollout.state, rollout.weight) == ("standby", 0)
    rollout.handle(LedgerGate(1, True, "verdict pass"))
    assert (rollout.state, rollout.weight) == ("ramping", 1)


def test_a_manual_start_waits_for_its_order() -> None:
    rollout = started(replace(PLAN, start="manual"))
    rollout.handle(RolloutTick(1000))
    assert rollout.state == "standby"
    rollout.handle(RolloutOrder(1001, "resume"))
    assert rollout.state == "ramping"


def test_a_closed_gate_refuses_every_way_into_the_traffic() -> None:
    for what in ("resume", "promote"):
        rollout = Rollout(replace(PLAN, start="manual"))
        rollout.handle(Health(0, SECOND, True))
        rollout.handle(LedgerGate(0, False, "'m' has a rehearsed verdict only"))
        with pytest.raises(JoyError, match="rehearsed verdict only"):
            rollout.handle(RolloutOrder(1, what))
        assert rollout.weight == 0


@pytest.mark.parametrize("weight", [5, 100])
def test_a_gate_that_closes_takes_the_traffic_back(weight: float) -> None:
    rollout = at(weight)
    rollout.handle(LedgerGate(9999, False, "'m' did not pass on the chip"))
    assert (rollout.state, rollout.weight) == ("rolled_back", 0)
    assert "did not pass" in rollout.changes[-1].text


def test_a_step_needs_its_time_and_its_requests() -> None:
    rollout = started()
    rollout.handle(Served(59, SECOND, None, 100))
    assert rollout.weight == 1
    rollout.handle(RolloutTick(60))
    assert rollout.weight == 5
    rollout.handle(RolloutTick(600))
    assert rollout.weight == 5, "no requests at this step yet"


def test_all_traffic_needs_the_bound_at_the_limit() -> None:
    rollout = started()
    for number in range(1, 4):
        rollout.handle(Served(number * 61, SECOND, None, 100))
    assert rollout.weight == 50
    rollout.handle(Served(1000, SECOND, None, 3290 - 300))
    assert rollout.weight == 50
    rollout.handle(Served(1001, SECOND, None, 1))
    assert rollout.weight == 100
    assert rollout.upper_bound <= 0.001
    rollout.handle(RolloutTick(1062))
    assert rollout.state == "promoted"


def test_above_the_limit_rolls_back_and_stays_there() -> None:
    rollout = at(20)
    fail(rollout, 2)
    assert rollout.state == "ramping"
    fail(rollout, 1)
    assert (rollout.state, rollout.weight) == ("rolled_back", 0)
    rollout.handle(Served(5000, SECOND, None, 100_000))
    rollout.handle(RolloutTick(10_000))
    rollout.handle(Health(10_001, SECOND, False))
    rollout.handle(Health(10_002, SECOND, True))
    assert rollout.state == "rolled_back"


def test_a_promoted_standby_is_still_watched() -> None:
    rollout = at(100)
    rollout.handle(RolloutTick(9999))
    assert rollout.state == "promoted"
    fail(rollout, 7)
    assert rollout.state == "rolled_back"


@pytest.mark.parametrize(
    ("failures", "requests", "state"),
    [
        (100, 100, "paused"),
        (0, 100, "rolled_back"),
        (5, 100, "rolled_back"),
        (0, 0, "rolled_back"),
    ],
)
def test_a_burst_is_held_against_the_primarys_record_where_it_was_not_asked(
    failures: int, requests: int, state: str
) -> None:
    rollout = at(50)
    rollout.handle(Served(1, PRIMARY, None, requests - failures)) if requests > failures else None
    fail(rollout, failures, PRIMARY)
    rollout.handle(Served(1, SECOND, None))  # the rule is quiet: both begin afresh
    fail(rollout, 7)
    assert rollout.state == state


def test_when_both_fail_alike_the_ramp_pauses() -> None:
    rollout = at(20)
    fail(rollout, 28, PRIMARY)
    fail(rollout, 7)
    assert (rollout.state, rollout.weight) == ("paused", 20)
    assert "both backends fail" in rollout.changes[-1].text


def test_a_paused_ramp_rolls_back_once_only_the_standby_fails() -> None:
    rollout = at(20)
    fail(rollout, 28, PRIMARY)
    fail(rollout, 7)
    rollout.handle(Served(2, PRIMARY, None, 1000))
    fail(rollout, 7)
    assert rollout.state == "rolled_back"


def test_a_primary_that_fails_far_less_does_not_excuse_the_standby() -> None:
    rollout = at(20)
    rollout.handle(Served(1, SECOND, "status_500"))
    rollout.handle(Served(1, PRIMARY, None, 1000))
    fail(rollout, 5, PRIMARY)
    fail(rollout, 6)
    assert rollout.state == "rolled_back"


def test_a_dead_primary_does_not_roll_the_living_standby_back() -> None:
    rollout = at(5)
    rollout.handle(Health(1, PRIMARY, False, "connect"))
    fail(rollout, 7)
    assert rollout.state == "paused"


def test_a_standby_that_stays_down_is_rolled_back_without_traffic() -> None:
    rollout = at(5)
    rollout.handle(Health(1000, SECOND, False, "connect"))
    rollout.handle(RolloutTick(1029))
    assert rollout.state == "ramping"
    rollout.handle(RolloutTick(1030))
    assert rollout.state == "rolled_back"


def test_a_short_absence_of_the_standby_only_delays() -> None:
    rollout = at(5)
    rollout.handle(Served(1000, SECOND, None, 50))
    rollout.handle(Health(1000, SECOND, False))
    rollout.handle(Health(1020, SECOND, True))
    rollout.handle(RolloutTick(1100))
    assert rollout.state == "ramping"


def test_too_few_requests_for_too_long_is_inconclusive() -> None:
    rollout = started(replace(PLAN, max_step_seconds=3600))
    rollout.handle(RolloutTick(3600))
    assert rollout.state == "paused"
    assert "inconclusive" in rollout.changes[-1].text


def test_an_operator_can_pause_resume_promote_and_roll_back() -> None:
    rollout = at(5)
    rollout.handle(RolloutOrder(1, "pause"))
    assert (rollout.state, rollout.weight) == ("paused", 5)
    rollout.handle(RolloutOrder(2, "resume"))
    assert (rollout.state, rollout.weight) == ("ramping", 5)
    rollout.handle(RolloutOrder(3, "promote"))
    assert (rollout.state, rollout.weight) == ("promoted", 100)
    rollout.handle(RolloutOrder(4, "rollback"))
    assert (rollout.state, rollout.weight) == ("rolled_back", 0)
    rollout.handle(RolloutOrder(5, "resume"))
    assert (rollout.state, rollout.weight) == ("ramping", 1)
    assert rollout.total.requests == 0, "a new attempt needs new evidence"


@pytest.mark.parametrize(
    ("state", "order"),
    [("ramping", "resume"), ("rolled_back", "rollback"), ("rolled_back", "pause")],
)
def test_an_order_that_does_not_fit_is_refused_with_the_reason(state: str, order: str) -> None:
    rollout = at(5)
    if state == "rolled_back":
        rollout.handle(RolloutOrder(1, "rollback"))
    with pytest.raises(JoyError, match=f"cannot {order}"):
        rollout.handle(RolloutOrder(2, order))


def test_shadow_requests_count_as_evidence_before_the_ramp() -> None:
    rollout = started(replace(PLAN, start="manual"))
    rollout.handle(Served(1, SECOND, None, 5000, shadow=True))
    assert rollout.upper_bound < 0.001
    for _ in range(7):
        rollout.handle(Served(2, SECOND, "first_byte_timeout", shadow=True))
    assert rollout.state == "rolled_back"


events: st.SearchStrategy[Callable[[float], Event]] = st.one_of(
    st.builds(
        lambda role, bad, count: lambda t: Served(t, role, "x" if bad else None, count),
        st.sampled_from([PRIMARY, SECOND]),
        st.booleans(),
        st.integers(1, 2000),
    ),
    st.builds(
        lambda role, up: lambda t: Health(t, role, up),
        st.sampled_from([PRIMARY, SECOND]),
        st.booleans(),
    ),
    st.builds(
        lambda told, changed: lambda t: AnswersCompared(t, told, not changed, changed),
        st.dictionaries(st.sampled_from(["text", "empty", "slow"]), st.booleans(), max_size=1),
        st.dictionaries(st.sampled_from([PRIMARY, SECOND]), st.booleans(), max_size=2),
    ),
    st.just(RolloutTick),
)


@settings(max_examples=200)
@given(st.lists(events, max_size=60))
def test_a_restart_at_any_moment_changes_nothing(made: list[Callable[[float], Event]]) -> None:
    rollout = started()
    for number, make in enumerate(made):
        rollout.handle(make(number * 31.0))
    saved = json.loads(json.dumps(rollout.snapshot()))
    again = Rollout(PLAN)
    again.restore(saved)
    assert (again.state, again.weight) == (rollout.state, rollout.weight)
    assert again.snapshot() == rollout.snapshot()


@settings(max_examples=200)
@given(st.lists(events, max_size=80))
def test_only_an_order_leads_out_of_a_rollback_or_a_pause(
    made: list[Callable[[float], Event]],
) -> None:
    rollout, before = started(), "ramping"
    for number, make in enumerate(made):
        rollout.handle(make(number * 31.0))
        if before == "rolled_back":
            assert rollout.state == "rolled_back"
        if before == "paused":
            assert rollout.state in ("paused", "rolled_back")
        before = rollout.state


def test_the_default_rule_needs_three_failures_and_judges_them_by_the_record() -> None:
    rollout = Rollout(PLAN)
    assert isinstance(rollout.rule, EProcess)
    rollout.handle(LedgerGate(0, True, ""))
    rollout.handle(Health(0, SECOND, True))
    fail(rollout, 2)
    assert rollout.state == "ramping", "no single answer decides"
    fail(rollout, 1)
    assert rollout.state == "rolled_back"


def test_one_client_who_asks_for_odd_things_decides_nothing() -> None:
    rollout = at(20)
    for number in range(60):
        rollout.handle(Served(1.0, SECOND, None, who=f"u{number % 20}"))
    for _ in range(30):
        rollout.handle(Served(1.0, SECOND, "status_500", who="odd"))
    assert rollout.state == "ramping"
    fail(rollout, 7)
    assert rollout.state == "rolled_back"


def test_streams_that_a_restart_cuts_are_one_event() -> None:
    rollout = at(20)
    for instance in "ab":
        for _ in range(7):
            rollout.handle(Served(1000.2, SECOND, "truncated", instance=instance))
    assert rollout.state == "ramping"
    for _ in range(8):  # with good answers between them they are no restart
        rollout.handle(Served(2000.0, SECOND, "truncated", instance="a"))
        rollout.handle(Served(2000.0, SECOND, None, instance="a"))
    assert rollout.state == "rolled_back"


def live(standby_share: float, answers: int = 3000, *, bad: float, more: float = 1.0) -> str:
    """The state behind `answers`, of which the share `bad` loops; `more` times of the standby's."""
    rollout, rng = at(20), random.Random(3)
    for number in range(answers):
        ours = rng.random() < standby_share
        seen = {"loops": True} if rng.random() < bad * (more if ours else 1.0) else {}
        role = SECOND if ours else PRIMARY
        rollout.handle(Observed(1.0, role, standby_share, "chat", seen, f"u{number}"))
    return rollout.state


def test_live_answers_of_two_equal_arms_are_no_evidence_and_others_are() -> None:
    for share in (0.05, 0.5):
        assert live(share, bad=0.05) == "ramping"
        assert live(share, bad=0.05, more=1.2) == "ramping", "tolerable"
        assert live(share, bad=0.005, more=60.0) == "rolled_back"


def test_one_client_counts_once_in_the_experiment() -> None:
    rollout = at(20)
    for _ in range(500):
        rollout.handle(Observed(1.0, SECOND, 0.2, "chat", {"loops": True}, "one"))
    assert rollout.state == "ramping"


def timed_ramp(slow_share: float, answers: int = 2000) -> Rollout:
    """A ramp at 50 % with its failures proven, and a standby whose slow answers are some."""
    rollout, rng = at(20), random.Random(5)
    for number in range(answers):
        ours = number % 2 == 0
        seconds = 9.0 if ours and rng.random() < slow_share else 1.0 + rng.random()
        role = SECOND if ours else PRIMARY
        seen = {"seconds": seconds}
        rollout.handle(Observed(1.0, role, 0.5, "chat", seen, f"u{number}"))
    return rollout


def test_all_traffic_waits_until_the_slow_tail_is_known_to_be_small() -> None:
    rollout = timed_ramp(0.0, answers=110)
    assert 0 < rollout.live.timed < 60
    now = 100_000.0
    while rollout.weight < 50:
        now += 61
        rollout.handle(Served(now, SECOND, None, 5000))
    rollout.handle(Served(now + 61, SECOND, None, 5000))
    assert rollout.weight == 50
    assert "far slower than the primary's slowest" in rollout.missing(now + 61)
    for number in range(200):
        seen = {"seconds": 1.5}
        rollout.handle(Observed(now, SECOND, 0.5, "chat", seen, f"more{number}"))
    rollout.handle(RolloutTick(now + 200))
    assert rollout.weight == 100
    assert "0 of 255 are far slower than the primary's slowest, at most" in rollout.changes[-1].text


def test_a_machine_that_stands_still_for_both_is_no_slow_tail() -> None:
    live, rng = Experiment(), random.Random(7)
    for number in range(2000):
        seconds = 9.0 if 1600 <= number < 1700 else 1.0 + rng.random()
        live.add(number % 2 == 0, 0.5, "", f"kind {number // 2 % 4}", {"seconds": seconds})
    assert live.late == live.primary_late == 16
    assert not live.missing(0.95)
    live.primary_late = 0
    assert live.missing(0.95)


def test_what_the_standby_said_before_the_primarys_times_are_known_counts() -> None:
    live = Experiment()
    for number in range(200):
        live.add(True, 0.5, "", "kind", {"seconds": 9.0 if number < 3 else 1.0})
    assert live.timed == 0
    for number in range(50):
        live.add(False, 0.5, "", "kind", {"seconds": 50.0 if number == 0 else 1.0})  # a cold start
    live.add(True, 0.5, "", "kind", {"seconds": 1.0})
    assert (live.timed, live.late) == (201, 3)


def test_a_few_slow_answers_of_the_primary_excuse_none_of_the_standby() -> None:
    live = Experiment()
    for number in range(101):
        live.add(False, 0.5, "", "kind", {"seconds": 9.0 if number == 100 else 1.0})
    for _ in range(20):
        live.add(True, 0.5, "", "kind", {"seconds": 1.0})
    assert live.primary_late == 1
    assert live.tail_limit == 0.03
    assert "20 of" in live.missing(0.95)


def test_a_slow_tail_is_no_promotion_and_pauses() -> None:
    rollout = timed_ramp(0.05)
    assert rollout.live.missing(0.95)
    assert rollout.state == "paused", rollout.changes[-1].text
    assert not timed_ramp(0.005).live.missing(0.95)
    again = Rollout(PLAN)
    again.restore(json.loads(json.dumps(rollout.snapshot())))
    assert (again.live.timed, again.live.late) == (rollout.live.timed, rollout.live.late)
