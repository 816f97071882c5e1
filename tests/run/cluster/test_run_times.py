"""Run times that are learnt, and an older log's keys that are gone."""

from __future__ import annotations

import dataclasses

from joymigrate.run.cluster import run_times
from joymigrate.run.cluster.controller.ledger import JobLedger, LogFact
from joymigrate.run.cluster.controller.restore import restore
from joymigrate.run.cluster.events import Ended
from joymigrate.run.cluster.jobs import GangJob
from tests.run.cluster.cases import job, nodes, queue, scheduler, started, submit
from tests.run.cluster.controller.test_restore import Book

ONE = "[{name: a, kind: gpu-8}]"
HOUR = 3600.0


def of(user: str, name: str, **more: object) -> GangJob:
    return dataclasses.replace(job(name, queue="q", cards_per_pod=8, **more), user=user)


def test_a_restarted_controller_knows_what_jobs_ran() -> None:
    book = Book(nodes(ONE), [queue("q")])
    for number in range(4):
        book.submit(of("ann", f"a{number}", command="train.py"), number * HOUR)
        if number < 3:
            book.end(f"a{number}", (number + 0.5) * HOUR)
    book.cancel("a3", 4 * HOUR)
    again, _ = restore(book.ledger, nodes(ONE), 5 * HOUR)
    assert again.history == book.scheduler.history
    assert run_times.predict(again.history, of("ann", "new", command="train.py")) == HOUR / 2


def test_a_log_with_shares_of_users_is_still_read() -> None:
    row = {**dataclasses.asdict(queue("q", max=8)), "strategy": "fair", "half_life": 168.0}
    ledger = JobLedger()
    ledger.apply(LogFact("limited", 0.0, data={"queues": [row], "weights": {}}))
    assert ledger.queues[0].max == {"cards": 8}


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
