"""The simulator against small traces that are worked out by hand, and the arrival experiment."""

from __future__ import annotations

import pytest

from joymigrate.run.cluster.arrival import draw, offer
from joymigrate.run.cluster.demand import typical
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.outcome import offered_data, simulation_data
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.simulate import Simulation, shuffle_jobs, simulate
from joymigrate.run.cluster.timeline import picture
from joymigrate.run.cluster.traces import Arrival, JobTrace
from tests.run.cluster.cases import job, nodes, queue, scheduler, submit

ONE = "[{name: a, kind: gpu-8}]"
TWO = "[{name: a, kind: gpu-8, leaf: l0}, {name: b, kind: gpu-8, leaf: l0}]"


def arrives(at: float, minutes: float | None, name: str, cards: int, **more: object) -> Arrival:
    """A job of so many cards that arrives at a minute and runs for so long."""
    asked = {"cards_per_pod": cards, "minutes": minutes, **more}
    one = job(name, **{key: value for key, value in asked.items() if value is not None})
    return Arrival(one, at * 60, float("inf") if minutes is None else minutes * 60)


def play(
    cluster: Inventory,
    *arrivals: Arrival,
    queues: tuple[Queue, ...] = (),
    checkpoint_minutes: float | None = None,
) -> Simulation:
    return simulate(cluster, JobTrace(arrivals, queues), "topology", 0, (), checkpoint_minutes)


def test_jobs_wait_for_each_other_and_the_figures_say_how_long() -> None:
    run = play(
        nodes(ONE),
        arrives(0, 60, "first", 8),
        arrives(0, 30, "second", 8),
        arrives(90, 30, "third", 8),  # arrives as the second ends: it need not wait
    )
    assert run.tally.waited == {"first": 0.0, "second": 3600.0, "third": 0.0}
    assert run.wait_mean_h == pytest.approx(1 / 3)
    assert run.wait_p99_h == pytest.approx(0.98)  # the 99th percentile between 0 and 1 hour
    assert run.allocation_pct == pytest.approx(100)
    assert run.hours == pytest.approx(2)
    assert (run.jobs, run.evictions, run.unplaced, run.blocked_pct) == (3, 0, (), 0)
    assert run.fairness == pytest.approx(1)


def test_allocation_is_the_mean_between_the_first_and_the_last_arrival() -> None:
    half = play(nodes(ONE), arrives(30, 60, "a", 4), arrives(150, 600, "b", 8))
    assert half.allocation_pct == pytest.approx(25)  # 4 of 8 cards in one of two hours
    at_once = play(nodes(ONE), arrives(0, 60, "a", 4), arrives(0, 30, "b", 2))
    assert at_once.allocation_pct == pytest.approx(75)  # no time between: the most in use


@pytest.mark.parametrize(
    ("checkpoint", "lost_card_h", "hours"),
    [
        (None, 8 * 70 / 60, 220 / 60),  # begins anew at 100
        (30, 8 * 10 / 60, 160 / 60),  # the last checkpoint was at 60 of its 120 minutes
    ],
)
def test_a_stopped_job_waits_again_and_loses_what_no_checkpoint_kept(
    checkpoint: float | None, lost_card_h: float, hours: float
) -> None:
    run = play(
        nodes(ONE),
        arrives(0, 120, "guest", 8, queue="guest"),
        arrives(70, 30, "claim", 8, queue="owner"),
        queues=(queue("owner", min=8), queue("guest", min=0)),
        checkpoint_minutes=checkpoint,
    )
    assert run.evictions == 1
    assert run.tally.waited == {"guest": 30 * 60, "claim": 0}
    assert run.tally.lost_card_h == pytest.approx(lost_card_h)
    assert run.hours == pytest.approx(hours)
    told = simulation_data(run)
    assert (told["evicted_per_claimed_card"], told["useless_evictions"]) == (1.0, 0)
    assert told["max_breaches"] == 0
    assert told["lost_card_hours"] == pytest.approx(lost_card_h, abs=0.005)


def test_an_eviction_counts_all_cards_that_it_stops() -> None:
    """A claim of four cards can only stop a gang of eight: two for one."""
    run = play(
        nodes(ONE),
        arrives(0, 120, "guest", 8, queue="guest"),
        arrives(10, 30, "claim", 4, queue="owner"),
        queues=(queue("owner", min=4), queue("guest", min=0)),
    )
    assert simulation_data(run)["evicted_per_claimed_card"] == 2.0


def test_time_is_blocked_while_cards_are_enough_but_not_where_they_are_needed() -> None:
    run = play(
        nodes(TWO),
        arrives(0, 60, "left", 5),
        arrives(0, 60, "right", 5),
        arrives(15, 10, "wide", 6),  # 3 + 3 cards are free: six, but on no one node
        arrives(30, 10, "late", 1),
    )
    assert run.blocked_pct == pytest.approx(50)
    assert run.tally.waited["wide"] == 45 * 60


def test_waiting_for_cards_that_are_in_use_is_not_blocked_time() -> None:
    run = play(nodes(ONE), arrives(0, 60, "a", 8), arrives(15, 10, "b", 6), arrives(30, 10, "c", 1))
    assert run.blocked_pct == 0


def test_fairness_falls_when_one_queue_waits_and_another_does_not() -> None:
    run = play(
        nodes(ONE),
        arrives(0, 60, "x", 8, queue="x"),
        arrives(0, 60, "y", 8, queue="y"),  # waits as long as it runs: speed 1/2
        queues=(queue("x"), queue("y")),
    )
    assert run.fairness == pytest.approx(1.5**2 / (2 * 1.25))  # Jain's index of 1 and 1/2


def test_endless_jobs_stay_and_what_never_starts_is_told_with_its_reason() -> None:
    run = play(
        nodes(ONE),
        arrives(0, None, "service", 6),
        arrives(10, 10, "waits", 4),
        arrives(20, 10, "odd", 9),
        arrives(20, 10, "fits", 2),
    )
    unplaced = dict(run.unplaced)
    assert set(unplaced) == {"waits", "odd"}
    assert unplaced["waits"] == "needs 4 cards of gpu-8, 2 are free"
    assert "1, 2, 3, 4, 5, 6, 7, 8" in unplaced["odd"]
    assert set(run.tally.waited) == {"service", "fits"}
    assert run.hours == pytest.approx(0.5)


def test_a_seed_shuffles_only_jobs_of_one_moment() -> None:
    trace = JobTrace(
        (*(arrives(0, 1, f"a{i}", 1) for i in range(8)), *(arrives(5, 1, f"b{i}", 1) for i in [1]))
    )
    as_it_stands = [arrival.job.name for arrival in shuffle_jobs(trace, 0)]
    drawn = [arrival.job.name for arrival in shuffle_jobs(trace, 1)]
    assert as_it_stands == [arrival.job.name for arrival in trace.arrivals]
    assert drawn != as_it_stands
    assert drawn == [arrival.job.name for arrival in shuffle_jobs(trace, 1)]
    assert (sorted(drawn), drawn[-1]) == (sorted(as_it_stands), "b1")


def test_the_timeline_shows_who_used_what_and_who_waited() -> None:
    run = play(
        nodes(ONE),
        arrives(0, 60, "x", 6, queue="x"),
        arrives(0, 60, "y", 4, queue="y"),
        arrives(120, 60, "z", 2, queue="x"),
        queues=(queue("x"), queue("y")),
    )
    line = run.timeline
    assert line.capacity == {"gpu-8": 8}
    first = next(i for i, at in enumerate(line.hours) if at > 0.5)
    second = next(i for i, at in enumerate(line.hours) if at > 1.5)
    assert [line.queues[q][first] for q in ("x", "y")] == [6, 0]
    assert [line.queues[q][second] for q in ("x", "y")] == [0, 4]
    assert [line.kinds["gpu-8"][i] for i in (first, second)] == [6, 4]
    assert [line.waiting[i] for i in (first, second)] == [1, 0]
    steps = [after - before for before, after in zip(line.hours, line.hours[1:], strict=False)]
    assert min(steps) == pytest.approx(max(steps), abs=2e-4)  # equal; hours have four digits


def test_the_picture_is_of_the_moment_with_most_cards_in_use() -> None:
    run = play(
        nodes(ONE),
        arrives(0, 60, "some", 2, queue="some"),
        arrives(60, 60, "most", 6, queue="most"),
        arrives(120, 60, "few", 1, queue="few"),
    )
    _, _, _, held = run.picture.rows[0]
    assert sorted(held) == ["", "", *["most"] * 6]


def test_a_picture_tells_broken_foreign_free_and_held_cards() -> None:
    run = scheduler(nodes("[{name: a, kind: gpu-8, used: [0], unhealthy: [1]}]"))
    submit(run, job("j", cards_per_pod=4, queue="q"))
    (name, kind, _, held), *others = picture(run).rows
    assert (name, kind, others) == ("a", "gpu-8", [])
    assert held[:2] == ("*", "-")
    assert sorted(held[2:]) == ["", "", "q", "q", "q", "q"]


# -- the arrival experiment -----------------------------------------------------------------------


def asks(*cards: int) -> JobTrace:
    return JobTrace(tuple(arrives(0, None, f"p{i}", number) for i, number in enumerate(cards)))


def test_a_long_trace_is_cut_where_its_requests_reach_the_load() -> None:
    trace = asks(*[2] * 100)
    order = draw(trace, cards=16, ratio=1.25, seed=3)
    assert len(order) == 10  # 20 cards
    assert len(set(order)) == len(order)
    assert order == draw(trace, cards=16, ratio=1.25, seed=3)
    assert order != draw(trace, cards=16, ratio=1.25, seed=4)


def test_a_short_trace_is_filled_up_with_copies() -> None:
    order = draw(asks(2, 2, 2), cards=16, ratio=1.0, seed=1)
    assert len(order) == 8
    assert set(order) == {0, 1, 2}
    assert order.index(2) < 7 or order.count(2) == 1


def test_allocation_is_noted_at_each_load_and_what_does_not_fit_is_dropped() -> None:
    runs = [offer(nodes(TWO), asks(*[2] * 40), "topology", 1.3, seed) for seed in (1, 2)]
    told = offered_data(runs)
    # Two cards more per pod: the first pod at or above a mark is where it is noted.
    assert told["allocation_pct_at_load"] == {
        "50": 50.0, "80": 87.5, "90": 100.0, "100": 100.0, "110": 100.0, "120": 100.0, "130": 100.0,
    }  # fmt: skip
    assert told["allocation_pct_by_seed"] == [100.0, 100.0]
    assert told["fragmentation_pct"] == 0.0
    assert told["jobs"] == 11  # 1.3 · 16 = 20.8 cards are asked for by eleven pods
    assert [item["reason"] for item in told["unplaced"]] == [
        "needs 2 cards of gpu-8, 0 are free"
    ] * 3


def test_cards_that_no_typical_request_can_use_are_fragments() -> None:
    """Requests of five on nodes of eight: three cards of each node are lost to all of them."""
    run = offer(nodes(TWO), asks(*[5] * 8), "topology", 1.3, 1)
    assert run.allocation_pct == pytest.approx(100 * 10 / 16)
    assert run.fragmentation_pct == pytest.approx(100 * 6 / 16)
    assert len(run.refused) == run.pods - 2


# -- demand ---------------------------------------------------------------------------------------


def pods(number: int, **more: object) -> list[GangJob]:
    return [job(f"d{i}-{sorted(more.items())}", **more) for i in range(number)]


def test_typical_requests_are_the_frequent_ones_with_the_most_memory_any_of_them_asked() -> None:
    demand = typical(
        [
            *pods(50, cards_per_pod=1, memory_gib_per_pod=1),
            *pods(14, cards_per_pod=1, memory_gib_per_pod=4),
            *pods(32, cards_per_pod=2, pods=1),
            *pods(4, cards_per_pod=8),  # the rarest 5 % are left out
        ]
    )
    assert [(t.cards, t.memory_mib) for t in demand] == [(1, 4096), (2, 0)]
    assert [t.share for t in demand] == pytest.approx([64 / 96, 32 / 96])


def test_every_pod_of_a_gang_counts() -> None:
    demand = typical([*pods(1, cards_per_pod=2, pods=3), *pods(1, cards_per_pod=4)])
    assert [(t.cards, t.share) for t in demand] == [(2, 0.75), (4, 0.25)]
