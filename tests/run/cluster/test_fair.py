"""Fair share with decay between the users of a queue, and run times that are learnt."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.cluster import fair_share, run_times
from joymigrate.run.cluster.controller.restore import restore
from joymigrate.run.cluster.events import Ended
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.scheduler import Scheduler
from tests.run.cluster.cases import job, nodes, queue, scheduler, started, submit
from tests.run.cluster.controller.test_restore import Book

ONE = "[{name: a, kind: gpu-8}]"
HOUR = 3600.0


def of(user: str, name: str, **more: object) -> GangJob:
    return dataclasses.replace(job(name, queue="q", cards_per_pod=8, **more), user=user)


def played(strategy: str) -> Scheduler:
    """Ann has had the node for ten hours; then she asks first, and Bob after her."""
    run = scheduler(nodes(ONE), queue("q", strategy=strategy))
    submit(run, of("ann", "a0"))
    submit(run, of("ann", "a1"), of("ann", "a2"), at=9 * HOUR)
    submit(run, of("bob", "b0"), at=9.5 * HOUR)
    return run


def test_the_user_who_had_less_goes_first_in_a_fair_queue_only() -> None:
    assert started(played("fair").on(Ended("a0", 10 * HOUR))) == ["b0"]
    assert started(played("traverse").on(Ended("a0", 10 * HOUR))) == ["a1"]


def test_what_was_used_long_ago_counts_little() -> None:
    run = scheduler(nodes(ONE), queue("q", strategy="fair", half_life_hours=1))
    submit(run, of("ann", "a0"))
    run.on(Ended("a0", 2 * HOUR))
    submit(run, of("bob", "b0"), at=40 * HOUR)
    submit(run, of("bob", "b1"), of("ann", "a1"), at=40.5 * HOUR)
    assert started(run.on(Ended("b0", 41 * HOUR))) == ["a1"]


def test_a_burst_of_one_moment_is_shared_out() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8, count: 4}]"), queue("q", strategy="fair"))
    submit(run, *(of("sys", f"s{i}") for i in range(4)))
    submit(run, *(of("ann", f"a{i}") for i in range(4)), at=60.0)
    submit(run, *(of("bob", f"b{i}") for i in range(4)), at=120.0)
    actions = run.on_all([Ended(f"s{i}", HOUR) for i in range(4)])
    assert sorted(name[0] for name in started(actions)) == ["a", "a", "b", "b"]


@given(
    st.lists(st.floats(0, 1e6), min_size=2, max_size=6),
    st.floats(0.1, 1000),
    st.integers(1, 64),
)
@settings(deadline=None, max_examples=50)
def test_a_run_counts_the_same_in_one_piece_and_in_several(
    moments: list[float], half_life: float, cards: int
) -> None:
    moments = sorted(moments)
    whole: fair_share.Past = {}
    pieces: fair_share.Past = {}
    fair_share.add(whole, "u", cards, moments[0], moments[-1], half_life)
    for began, ended in pairwise(moments):
        fair_share.add(pieces, "u", cards, began, ended, half_life)
    assert pieces["u"][0] == pytest.approx(whole["u"][0], rel=1e-6, abs=1e-9)
    # Numbers near the smallest of all have few digits: a share alone would not do.
    assert whole["u"][0] <= cards * (moments[-1] - moments[0]) / HOUR * (1 + 1e-9) + 1e-12


def test_half_a_life_without_a_fair_queue_is_an_error() -> None:
    with pytest.raises(JoyError, match="half_life_hours"):
        queue("q", half_life_hours=3)


def test_a_restarted_controller_knows_what_users_had_and_what_jobs_ran() -> None:
    book = Book(nodes(ONE), [queue("q", strategy="fair")])
    for number in range(4):
        book.submit(of("ann", f"a{number}", command="train.py"), number * HOUR)
        if number < 3:
            book.end(f"a{number}", (number + 0.5) * HOUR)
    book.cancel("a3", 4 * HOUR)
    again, _ = restore(book.ledger, nodes(ONE), 5 * HOUR)
    (key,) = again.past
    assert again.past[key] == pytest.approx(book.scheduler.past[key])
    assert again.past[key][0] == pytest.approx(8 * 2.5, rel=0.02)
    assert again.history == book.scheduler.history
    assert run_times.predict(again.history, of("ann", "new", command="train.py")) == HOUR / 2


def test_a_job_without_minutes_is_ordered_by_what_its_like_has_run() -> None:
    run = scheduler(nodes(ONE), queue("q"))
    at = 0.0
    for number in range(3):
        for program, hours in (("long.py", 20.0), ("short.py", 0.1)):
            name = f"{program[0]}{number}"
            submit(run, of("ann", name, command=program), at=at)
            at += hours * HOUR
            run.on(Ended(name, at))
    submit(run, of("ann", "running", command="other.py"), at=at)
    submit(run, of("ann", "long", command="long.py"), at=at + 60)
    submit(run, of("ann", "short", command="short.py"), at=at + 120)
    assert started(run.on(Ended("running", at + HOUR))) == ["short"]


def test_nothing_is_predicted_from_fewer_than_three_runs() -> None:
    history: run_times.History = {}
    like = of("ann", "x", command="x.py")
    for seconds in (10.0, 30.0):
        run_times.learn(history, like, seconds)
    assert run_times.predict(history, like) is None
    run_times.learn(history, like, 20.0)
    assert run_times.predict(history, like) == 20.0
    assert run_times.predict(history, of("bob", "y")) is None


def test_what_is_remembered_of_run_times_stays_small() -> None:
    history: run_times.History = {}
    for number in range(600):
        run_times.learn(history, of(f"u{number}", "x", command=f"{number}.py"), 1.0)
    assert len(history) == run_times.MOST


def test_a_job_whose_like_was_short_goes_before_held_cards_are_needed() -> None:
    run = scheduler(nodes(ONE), queue("q"))
    at = 0.0
    for number in range(3):  # a program that takes six minutes
        submit(run, of("ann", f"s{number}", command="short.py"), at=at)
        at += 0.1 * HOUR
        run.on(Ended(f"s{number}", at))
    submit(run, job("half", cards_per_pod=4, queue="q", minutes=60), at=at)
    submit(run, job("whole", cards_per_pod=8, queue="q", minutes=60), at=at)
    (hold,) = run.admission.holds
    assert hold.entry.job.name == "whole"
    other = job("other", cards_per_pod=4, queue="q", command="short.py")
    small = dataclasses.replace(other, name="small", user="ann")
    assert started(submit(run, other, at=at + 60)) == []  # nobody knows how long it runs
    assert started(submit(run, small, at=at + 60)) == ["small"]
    assert run.running["small"].expected == at + 60 + 0.1 * HOUR
