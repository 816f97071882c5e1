"""Replicas of a service that follow a gateway's counter, and come before a load that is known."""

from __future__ import annotations

from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import autoscale
from joymigrate.run.cluster.autoscale import Load, ScalingRule
from joymigrate.run.cluster.forecast import going_on
from joymigrate.run.cluster.on_ray.serving import keep
from joymigrate.run.cluster.replicas import ServedReplicas, number_of, requests_so_far
from joymigrate.run.serve.gateway.meters import GatewayMeters
from joymigrate.run.serve.monitor.metrics import Metrics
from tests.run.cluster.cases import job

RULE = ScalingRule(10.0, least=1, most=8, down_window_s=120.0, start_s=600.0)
DAY, STEP = 86400.0, 600.0


def wave(at: float) -> float:
    """Two requests a second at night, sixty around noon."""
    return 2.0 if at % DAY < DAY / 3 else 60.0 if at % DAY < 2 * DAY / 3 else 20.0


def test_replicas_follow_the_counter_and_free_numbers_are_used_again() -> None:
    served = ServedReplicas("web", RULE)
    assert served.on(0.0, 1000.0, ["web-0"]).start == ()
    change = served.on(10.0, 1200.0, ["web-0", "web-2", "other-7"])  # 20 a second
    assert (change.wanted, change.rate, change.start) == (2, 20.0, ())
    change = served.on(20.0, 1600.0, ["web-2"])
    assert (change.wanted, change.start) == (4, ("web-0", "web-1", "web-3"))
    assert served.on(30.0, 50.0, ["web-0", "web-1", "web-2", "web-3"]).rate == 5.0  # began anew
    late = served.on(200.0, 900.0, ["web-0", "web-1", "web-2", "web-3"])
    assert late.stop == ("web-1", "web-2", "web-3")


def test_the_first_look_stops_no_replica_that_is_there() -> None:
    served, live = ServedReplicas("web", RULE), [f"web-{n}" for n in range(5)]
    first = served.on(1000.0, 90_000.0, live)
    assert (first.wanted, first.stop) == (5, ())
    assert served.on(1010.0, 90_500.0, live).stop == ()
    for look in range(2, 15):
        late = served.on(1000.0 + 10 * look, 90_500.0 + look, live)
    assert late.stop == ("web-1", "web-2", "web-3", "web-4")  # after a window of two minutes


def test_replicas_are_there_before_a_rise_that_comes_every_day() -> None:
    pytest.importorskip("statsmodels")
    record = [Load(n * STEP, wave(n * STEP)) for n in range(int(3 * DAY / STEP))]
    now = 40 * DAY + DAY / 3 - 2400.0  # forty minutes before the morning of a later day
    forecast, step = going_on(record, DAY, RULE.start_s, now)
    assert step == STEP
    served, total, wanted = ServedReplicas("web", RULE, forecast, step), 0.0, {}
    blind = ServedReplicas("web", RULE)
    for look in range(int(2400 / 60)):
        at = now + look * 60
        total += wave(at) * 60
        live = [f"web-{n}" for n in range(wanted.get(look - 1, (1, 1))[0])]
        wanted[look] = (served.on(at, total, live).wanted, blind.on(at, total, ["web-0"]).wanted)
    assert wanted[39][0] >= 6
    assert wanted[39][1] == 1  # the counter alone says nothing yet
    assert wanted[1][0] <= 2  # and half an hour before that nothing was needed


def test_what_a_gateway_counts_is_read_from_its_own_page() -> None:
    metrics = Metrics()
    meters = GatewayMeters(metrics)
    meters.outcomes["ok"].add(7)
    meters.outcomes["error"].add(2)
    assert requests_so_far(metrics.text().decode(), "here") == 9.0
    with pytest.raises(JoyError, match=autoscale.COUNTER):
        requests_so_far("up 1\n", "here")


def test_manifests_name_metrics_that_exist_or_say_what_makes_them() -> None:
    triggers = autoscale.keda("web", RULE, "http://p", autoscale.query_of("web"))["spec"][
        "triggers"
    ]
    assert "service=" not in triggers[0]["metadata"]["query"]
    rule = autoscale.adapter("web")["data"]["config.yaml"]
    assert autoscale.COUNTER in rule
    assert autoscale.RATE in rule


def test_jobs_are_submitted_and_cancelled_and_a_silent_gateway_changes_nothing() -> None:
    totals: list[Any] = [0.0, 1e9, JoyError("no metrics"), 1e9]
    asked: list[tuple[str, Any]] = []
    live = ["web-0"]

    def ask(method: str, *arguments: Any) -> Any:
        if method == "status":
            return {"jobs": [{"job": one, "state": "running"} for one in live]}
        asked.append((method, arguments[0]))
        if method == "submit":
            live.extend(one.name for one in arguments[0])
        return None

    def total() -> float:
        value = totals.pop(0)
        if isinstance(value, JoyError):
            raise value
        return float(value)

    looks = keep(ServedReplicas("web", RULE), job("one", command="serve"), ask, total, 0.01, "ann")
    for _ in range(3):
        next(looks)
    (submitted,) = [jobs for method, jobs in asked if method == "submit"]
    assert [one.name for one in submitted] == ["web-1"]
    assert submitted[0].environment["JOYMIGRATE_REPLICA"] == "1"
    assert live == ["web-0", "web-1"]
    assert number_of("web-1-2", "web") is None
