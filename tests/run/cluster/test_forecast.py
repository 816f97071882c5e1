"""Traffic to come: nothing is known before its time, and intervals hold what they say."""

from __future__ import annotations

import numpy as np
import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import autoscale, forecast
from joymigrate.run.cluster.autoscale import Autoscaler, Load, ScalingRule

pytest.importorskip("statsmodels", reason="pip install 'joymigrate[cluster]'")


def rushes(days: int, hours: int = 12) -> list[Load]:
    """Half-hourly traffic with one rush a day."""
    at = np.arange(days * 48) * 1800.0
    rate = np.where(at / 3600 % 24 == hours, 200.0, 10.0) + at / 86400
    return [Load(float(t), float(r)) for t, r in zip(at, rate, strict=True)]


@pytest.mark.dear
def test_replicas_are_there_before_the_rush_that_came_every_day() -> None:
    loads, rule = rushes(6), ScalingRule(10, 1, 64, start_s=1800)
    ahead = forecast.ahead(loads, 86400, rule.start_s)
    assert not any(ahead[:96])  # two seasons are not known yet
    rows = [i for i, load in enumerate(loads) if load.rate > 150 and load.at > 3 * 86400]
    assert all(ahead[i - 1] > 180 for i in rows)
    plain = autoscale.play(loads[144:], rule)
    early = autoscale.play(loads[144:], rule, ahead[144:])
    assert plain.overload_pct > 20
    assert early.overload_pct < 5


def test_what_comes_later_changes_no_forecast_made_before() -> None:
    loads = rushes(4)
    other = [*loads[:150], *(Load(load.at, load.rate + 500) for load in loads[150:])]
    one, two = (forecast.ahead(some, 86400, 1800) for some in (loads, other))
    assert one[:150] == two[:150]
    assert one[151:] != two[151:]


def test_a_forecast_is_not_held_back_by_the_growth_that_follows_the_load() -> None:
    scaler = Autoscaler(ScalingRule(10, 1, 64, up_per_step=2))
    assert scaler.on(Load(0, 10)) == 1
    assert scaler.on(Load(15, 10), ahead=405) == 41
    assert scaler.on(Load(30, 10), ahead=1e9) == 64


def test_an_even_grid_fills_holes_and_refuses_what_is_no_traffic() -> None:
    values, step = forecast.even([Load(0, 1), Load(10, 2), Load(20, 3), Load(50, 6)])
    assert (step, list(values)) == (10, [1, 2, 3, 4, 5, 6])
    for wrong in ([Load(0, 1)], [Load(0, 1), Load(1, -1)], [Load(0, 1), Load(1, float("nan"))]):
        with pytest.raises(JoyError):
            forecast.even(wrong)
    with pytest.raises(JoyError, match="at least 4"):
        forecast.ahead(rushes(3), 3600, 60)


def growing(days: int, seed: int) -> list[Load]:
    rng = np.random.default_rng(seed)
    rate = 100 + 2 * np.arange(days) + rng.normal(0, 5, days)
    return [
        Load(day * 86400.0 + hour * 3600.0, float(rate[day] * (0.3 if hour else 1)))
        for day in range(days)
        for hour in range(0, 24, 6)
    ]


@pytest.mark.dear
def test_cards_run_out_inside_the_interval_and_the_backtest_says_how_it_did() -> None:
    """100/s and 2/s more each day; one replica carries 10/s on two cards; there are 40 cards."""
    inside = 0
    for seed in range(3):
        found = forecast.outgrow(growing(40, seed), 10, 40, 2, 60, 0.9)
        earliest, expected, latest = found.full
        assert earliest is not None
        assert expected is not None
        assert earliest <= expected
        truth = 11  # day 50 is the first above 200 requests per second
        inside += earliest <= truth and (latest is None or truth <= latest)
        assert found.buy.low <= found.buy.middle <= found.buy.high
        assert found.buy.middle == pytest.approx(20, abs=8)  # day 100: 300/s are 60 cards
        assert found.backtest.widened >= 1
        assert found.backtest.error_pct < 15
    assert inside == 3


def test_flat_traffic_needs_nothing_and_short_records_are_refused() -> None:
    flat = [Load(hour * 3600.0, 50.0) for hour in range(24 * 12)]
    found = forecast.outgrow(flat, 10, 5, 1, 30, 0.9)
    assert found.full == (None, None, None)
    assert found.buy == forecast.ForecastInterval(0, 0, 0)
    with pytest.raises(JoyError, match="at least 10"):
        forecast.outgrow(flat[:100], 10, 5, 1, 30, 0.9)


def test_the_hours_of_a_forecast_become_triggers_and_equal_hours_one() -> None:
    rule = ScalingRule(10, 1, 8)
    plan = [1] * 8 + [4] * 4 + [9] * 11 + [4]
    triggers = autoscale.keda("web", rule, "http://p", "up", plan)["spec"]["triggers"]
    found = [
        (one["metadata"]["start"], one["metadata"]["end"], one["metadata"]["desiredReplicas"])
        for one in triggers[1:]
    ]
    assert found == [
        ("0 8 * * *", "0 12 * * *", "4"),
        ("0 12 * * *", "0 23 * * *", "8"),
        ("0 23 * * *", "59 23 * * *", "4"),
    ]
    loads = rushes(3)
    hours = autoscale.hourly(loads, ScalingRule(10, 1, 64), [load.rate for load in loads])
    assert (hours[12], hours[3]) == (21, 2)
