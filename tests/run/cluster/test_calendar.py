"""Reservations of a jobs file: windows that repeat, in a plan and in a simulation."""

from __future__ import annotations

from datetime import datetime

import pytest

from joymigrate.cli._cluster_reserve import list_repeats
from joymigrate.errors import JoyError
from joymigrate.run.cluster import calendar, jobs
from joymigrate.run.cluster.bookings import bookings_of
from joymigrate.run.cluster.jobs import Workload
from joymigrate.run.cluster.plan import plan
from joymigrate.run.cluster.simulate import simulate
from joymigrate.run.cluster.traces import Arrival, Trace
from tests.run.cluster.cases import nodes, workload

TWO = nodes("[{name: a, kind: gpu-8}, {name: b, kind: gpu-8}]")
NIGHTS = """
jobs:
- {name: short, cards_per_pod: 8, minutes: 50}
- {name: long, cards_per_pod: 8, pods: 1}
reservations:
- {name: night, nodes: a, start_minutes: 60, minutes: 30, every_minutes: 120, times: 3}
- {name: course, nodes: [b], minutes: 90, queue: other}
"""


def test_a_plan_keeps_jobs_off_windows_that_they_would_reach() -> None:
    data = plan(TWO, workload(NIGHTS))
    assert [(one["job"], one["pods"][0]["node"]) for one in data["placements"]] == [("short", "a")]
    (waits,) = data["waiting"]
    assert waits["reason"].startswith("the free cards are reserved: course, which begins now")
    assert waits["start"]["in_s"] == 90 * 60  # when the course is over


def test_a_window_stops_who_is_in_its_way_and_lets_it_go_on_after() -> None:
    known: Workload = workload(NIGHTS)
    (job,) = (one for one in known.jobs if one.name == "long")
    late = Trace((Arrival(job, 0.0, 200 * 60.0),), reservations=known.reservations)
    run = simulate(nodes("[{name: b, kind: gpu-8}, {name: a, kind: cpu}]"), late, "topology")
    assert run.tally.waited["long"] == 90 * 60
    assert not run.unplaced


def test_windows_have_numbers_and_one_name_means_all() -> None:
    (night, _) = workload(NIGHTS).reservations
    assert [name for name, _, _ in night.windows] == ["night#1", "night#2", "night#3"]
    assert night.windows[1][1:] == (180 * 60.0, 210 * 60.0)
    known = ["night#1", "night#2", "nightly", "day"]
    assert calendar.of_name("night", known) == ["night#1", "night#2"]
    assert calendar.of_name("night#2", known) == ["night#2"]
    assert calendar.of_name("", known) == []


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("{name: w, nodes: c, minutes: 5}", "no node 'c'"),
        ("{name: w, nodes: a, minutes: 5, times: 2}", "go together"),
        ("{name: w, nodes: a, minutes: 5, every_minutes: 4, times: 2}", "before the last one"),
        ("{name: w, nodes: a, minutes: 5, every_minutes: 9, times: 367}", "366"),
    ],
)
def test_windows_that_cannot_be_are_refused(item: str, says: str) -> None:
    with pytest.raises(JoyError, match=says):
        bookings_of(workload(f"jobs: []\nreservations: [{item}]").reservations, TWO.nodes)


def test_a_node_is_not_reserved_twice() -> None:
    both = "[{name: v, nodes: a, minutes: 5}, {name: w, nodes: a, start_minutes: 4, minutes: 5}]"
    with pytest.raises(JoyError, match="reserved twice"):
        bookings_of(workload(f"jobs: []\nreservations: {both}").reservations, TWO.nodes)


def test_days_keep_the_hour_of_the_local_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        begin = datetime(2026, 10, 24, 8).timestamp()  # summer time ends that night
        (after,) = list_repeats(begin, "1d", 2, 1.0)
        assert after - begin == 25 * 3600
        assert list_repeats(begin, "12h", 2, 1.0) == (begin + 12 * 3600,)
    finally:
        monkeypatch.undo()
        time.tzset()
    for every, times in (("1d", 1), ("", 2), ("1x", 2), ("30m", 2)):
        with pytest.raises(JoyError):
            list_repeats(begin, every, times, 1.0)


def test_a_queue_that_is_not_there_is_refused() -> None:
    with pytest.raises(JoyError, match="no queue 'y'"):
        jobs.from_data(
            {
                "jobs": [],
                "queues": [{"name": "x"}],
                "reservations": [{"name": "w", "nodes": "a", "minutes": 1, "queue": "y"}],
            }
        )
