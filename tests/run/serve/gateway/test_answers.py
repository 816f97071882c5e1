"""Pairs of answers: which times and tasks speak against the standby, and what follows."""

from __future__ import annotations

import math
import random

import pytest

from joymigrate.run.serve.gateway.answers import TIMES, Said, compare
from joymigrate.run.serve.gateway.events import SECOND, Compared, Gate, Health, Plan
from joymigrate.run.serve.gateway.rollout import Rollout


def ramping() -> Rollout:
    rollout = Rollout(Plan())
    rollout.handle(Gate(0, True, "test"))
    rollout.handle(Health(0, SECOND, True))
    return rollout


def said(seconds: float = 1.0, first: float = 0.1, gap: float = 0.01, text: str = "good") -> Said:
    return Said(200, text, "stop", seconds, first, gap)


@pytest.mark.parametrize(
    ("ours", "aspect"),
    [
        (said(seconds=4.0), "slow"),
        (said(first=0.4), "first"),
        (said(gap=0.04), "between"),
        (said(seconds=31.0), "tail"),
    ],
)
def test_each_time_is_an_aspect_of_its_own(ours: Said, aspect: str) -> None:
    told = compare(said(), ours, Plan(), greedy=False, tail_seconds=10.0)
    assert told[aspect] is True
    fine = compare(said(), said(), Plan(), greedy=False, tail_seconds=10.0)
    assert not any(fine.values())
    assert set(TIMES) <= set(fine)
    assert not set(TIMES) & set(compare(said(), ours, Plan(max_slowdown=0), greedy=False))


def test_a_slow_tail_pauses_where_the_middle_is_fine() -> None:
    rollout = ramping()
    for number in range(400):
        seconds = 40.0 if number % 5 == 0 else 1.0
        told = compare(said(), said(seconds=seconds), rollout.plan, greedy=False, tail_seconds=2.0)
        rollout.handle(Compared(2000.0 + number, told))
        if rollout.state == "paused":
            break
    assert rollout.state == "paused"
    assert "slowest hundredth" in rollout.changes[-1].text
    assert number < 100


def test_an_equal_standby_is_not_paused_for_its_times() -> None:
    rng = random.Random(3)
    paused = 0
    for _ in range(40):
        rollout = ramping()
        for number in range(1000):
            times = [rng.lognormvariate(0, 1.0) for _ in range(2)]
            told = compare(
                said(times[0], times[0] / 5, times[0] / 50),
                said(times[1], times[1] / 5, times[1] / 50),
                rollout.plan, greedy=False, tail_seconds=math.exp(2.33),
            )  # fmt: skip
            rollout.handle(Compared(2000.0 + number, told))
        paused += rollout.state == "paused"
    assert paused <= 2


def test_a_standby_that_fails_tasks_is_rolled_back() -> None:
    rollout = ramping()
    for number in range(60):
        ours = said(text="it is 41" if number % 2 else "it is 42")
        told = compare(said(text="it is 42"), ours, rollout.plan, greedy=False, expect="42")
        rollout.handle(Compared(2000.0 + number, told))
    assert rollout.state == "rolled_back"
    assert "failed the task" in rollout.changes[-1].text


def test_tasks_that_both_fail_say_nothing() -> None:
    told = compare(said(text="a"), said(text="b"), Plan(), greedy=False, expect="42")
    assert "task" not in told
