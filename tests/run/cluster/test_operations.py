"""Metrics, preflight and autoscaling."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.cluster import autoscale, metrics, preflight
from joymigrate.run.cluster.autoscale import Autoscaler, Load, ScalingRule
from joymigrate.run.cluster.kubernetes.validate import ManifestObject, check, schemas

STATUS = {
    "jobs": [
        {"job": "a", "queue": "q", "state": "running", "waited_s": 1.5, "evictions": 2,
         "pods": [{"node": "n", "cards": [0, 1], "rank": 0}]},
        {"job": 'b"\n', "queue": "q", "state": "waiting", "waited_s": 3, "evictions": 0,
         "pods": []},
    ],
    "nodes": [{"node": "n", "kind": "gpu-8", "cards": 8, "free": 6}],
}  # fmt: skip


def test_metrics_are_readable_by_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {
        f.name: f for f in parser.text_string_to_metric_families(metrics.exposition(STATUS))
    }
    jobs = {tuple(s.labels.values()): s.value for s in families["joymigrate_cluster_jobs"].samples}
    assert jobs["q", "running"] == jobs["q", "waiting"] == 1
    assert families["joymigrate_cluster_evictions"].samples[0].value == 2
    assert families["joymigrate_cluster_cards_in_use"].samples[0].value == 2
    assert families["joymigrate_cluster_wait_seconds"].samples[1].labels["job"] == 'b"\n'


RECORD = """
hccn_tool -i 0 -link -g
link status: UP
hccn_tool -i 0 -ip -g
ipaddr:10.20.0.1
netmask:255.255.255.0
hccn_tool -i 1 -link -g
link status: DOWN
hccn_tool -i 1 -net_health -g
net health status: Receive timeout
hccn_tool -i 2 -ip -g
ipaddr:10.20.0.1
"""


def test_links_that_are_down_unhealthy_missing_or_doubled_are_named() -> None:
    words = [f"{f.where} {f.what}" for f in preflight.links(RECORD, 4, "n1")]
    for expected in (
        "card 1 its RoCE link is DOWN",
        "card 1 its network health is 'Receive timeout'",
        "card 3 nothing was recorded",
        "cards 0, 2 have the address 10.20.0.1",
    ):
        assert any(expected in word for word in words), words
    assert len(words) == 4


def test_a_rank_table_of_a_plan_fits_it_and_mistakes_are_found() -> None:
    pods = [("a", [4, 5, 6, 7]), ("b", [0, 1, 2, 3])]
    table: dict[str, Any] = {"version": "1.0", "status": "completed", "server_count": "2"}
    table["server_list"] = [
        {"server_id": node, "device": [
            {"device_id": str(card), "rank_id": str(4 * number + rank),
             "device_ip": f"10.0.{number}.{card}"}
            for rank, card in enumerate(cards)
        ]}
        for number, (node, cards) in enumerate(pods)
    ]  # fmt: skip
    assert preflight.rank_table(table, pods, "t") == []
    broken = copy.deepcopy(table)
    broken["server_list"][1]["device"][0]["rank_id"] = "0"
    broken["server_list"][1]["device"][1]["device_ip"] = "10.0.0.4"
    broken["server_count"] = "3"
    words = " ".join(f.what for f in preflight.rank_table(broken, None, "t"))
    for expected in ("rank 0 is also", "10.0.0.4 is also", "server_count is 3", "ranks 4"):
        assert expected in words, words
    swapped = preflight.rank_table(table, [pods[1], pods[0]], "t")
    assert len(swapped) == 8
    assert preflight.rank_table({}, None, "t")[0].what == "no `server_list`"


def test_replicas_rise_at_once_and_fall_after_the_window() -> None:
    scaler = Autoscaler(ScalingRule(10, 1, 20, 300))
    assert [scaler.on(Load(t, 80)) for t in (0, 15, 30, 45)] == [2, 4, 8, 8]
    assert [scaler.on(Load(t, 10)) for t in (60, 200, 340, 346)] == [8, 8, 8, 1]
    assert scaler.on(Load(400, 10.5)) == 1


@given(
    st.lists(st.floats(0, 1e4), min_size=1, max_size=60),
    st.integers(0, 5),
    st.integers(5, 50),
    st.floats(1, 100),
)
def test_replicas_stay_in_bounds_and_carry_a_steady_load(
    rates: list[float], least: int, most: int, target: float
) -> None:
    scaler = Autoscaler(ScalingRule(target, least, most, 60))
    for number, rate in enumerate(rates):
        assert least <= scaler.on(Load(number * 15.0, rate)) <= most
    for number in range(20):
        last = scaler.on(Load((len(rates) + number) * 15.0, rates[-1]))
    need = min(most, math.ceil(rates[-1] / target - 1e-9))
    assert last * target * 1.1 + 1e-6 >= min(rates[-1], most * target) or last >= need


def test_a_record_is_played_and_rendered() -> None:
    text = "at,rate\n" + "".join(f"{60 * i},{10 + 90 * (10 <= i < 20)}\n" for i in range(40))
    rule = ScalingRule(20, 1, 10)
    played = autoscale.play(autoscale.read(text, "t"), rule)
    assert max(played.replicas) == 5
    assert played.replicas[-1] == 1
    assert 0 < played.overload_pct < 50
    with pytest.raises(JoyError, match="at,rate"):
        autoscale.read("a,b\n1,2\n", "t")
    pytest.importorskip("kubernetes_validate", reason="pip install 'joymigrate[cluster]'")
    manifest = autoscale.hpa("web", rule, "requests_per_second")
    assert check([ManifestObject("t", manifest)], schemas()).problems == ()
    assert autoscale.keda("web", rule, "http://p", "up")["spec"]["maxReplicaCount"] == 10


def test_a_step_of_load_costs_what_it_is_counted_to_cost() -> None:
    """One replica carries 10/s, and one minute passes before a new one does."""
    rule = ScalingRule(10, 1, 8, down_window_s=120, up_per_step=4, start_s=60)
    rates = [10, 40, 40, 40, 10, 10, 10, 10]
    played = autoscale.play([Load(60.0 * i, rate) for i, rate in enumerate(rates)], rule)
    # Down only when no larger number was wanted for two minutes.
    assert played.replicas == (1, 4, 4, 4, 4, 4, 1, 1)
    assert played.changes == 2
    assert played.replica_hours == pytest.approx((1 + 4 * 5 + 1) / 60)  # the last row is a moment
    # One minute at 40/s on one ready replica, which carries 11/s within the tolerance.
    asked = 60 * sum(rates[:-1])
    assert played.overload_pct == pytest.approx(100 * 60 * (40 - 11) / asked)
    idle = autoscale.play([Load(0, 0), Load(60, 0)], rule)
    assert (idle.overload_pct, idle.replica_hours, idle.changes) == (0.0, 1 / 60, 0)


def test_growth_is_bounded_per_step_and_small_deviations_change_nothing() -> None:
    scaler = Autoscaler(ScalingRule(10, 1, 64, up_per_step=2), replicas=4)
    assert scaler.replicas == 4
    assert scaler.on(Load(0, 43)) == 4  # less than 10 % over: within the tolerance
    assert scaler.on(Load(15, 37)) == 4
    assert [scaler.on(Load(30 + 15 * i, 1000)) for i in range(5)] == [8, 16, 32, 64, 64]
    assert Autoscaler(ScalingRule(10, 2, 64), replicas=1).replicas == 2
    assert Autoscaler(ScalingRule(10, 2, 64)).replicas == 2


def test_down_waits_for_the_whole_window_and_then_takes_the_largest_inside_it() -> None:
    scaler = Autoscaler(ScalingRule(10, 1, 64, down_window_s=100), replicas=8)
    assert scaler.on(Load(0, 80)) == 8
    assert scaler.on(Load(40, 50)) == 8
    assert scaler.on(Load(100, 10)) == 8  # the eight was wanted exactly a window ago
    assert scaler.on(Load(101, 10)) == 5
    assert scaler.on(Load(141, 10)) == 1


@pytest.mark.parametrize(
    "wrong", [ScalingRule(0, 1, 2), ScalingRule(10, 3, 2), ScalingRule(10, -1, 2)]
)
def test_a_rule_that_cannot_be_kept_is_refused(wrong: ScalingRule) -> None:
    with pytest.raises(JoyError, match="least"):
        Autoscaler(wrong)


def test_a_service_may_go_to_nothing_and_comes_back_at_the_first_request() -> None:
    scaler = Autoscaler(ScalingRule(10, 0, 8, down_window_s=0))
    assert scaler.on(Load(0, 0)) == 0
    assert scaler.on(Load(15, 1)) == 1


def test_a_traffic_record_names_its_wrong_row_and_is_put_in_order() -> None:
    loads = autoscale.read("time,qps\n60,2\n0,1\n", "t")
    assert loads == [Load(0, 1), Load(60, 2)]
    with pytest.raises(JoyError) as caught:
        autoscale.read("at,rate\n0,1\n60,many\n", "t.csv")
    assert caught.value.where == "t.csv:3"
    for text in ("at,load\n0,1\n", "when,rate\n0,1\n", ""):
        with pytest.raises(JoyError, match="columns"):
            autoscale.read(text, "t")


def test_manifests_say_what_the_rule_says() -> None:
    rule = ScalingRule(2.5, 0, 10, down_window_s=90, up_per_step=3)
    spec = autoscale.hpa("web", rule, "rps")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 10)  # an HPA cannot go to none
    metric = spec["metrics"][0]["pods"]["target"]
    assert metric == {"type": "AverageValue", "averageValue": "2500m"}
    up, down = spec["behavior"]["scaleUp"], spec["behavior"]["scaleDown"]
    assert up["policies"] == [{"type": "Percent", "value": 200, "periodSeconds": 15}]
    assert (up["stabilizationWindowSeconds"], down["stabilizationWindowSeconds"]) == (0, 90)
    whole = autoscale.hpa("web", ScalingRule(20, up_per_step=1.0), "rps")["spec"]
    assert whole["metrics"][0]["pods"]["target"]["averageValue"] == "20"
    assert whole["behavior"]["scaleUp"]["policies"][0]["value"] == 1
    scaled = autoscale.keda("web", rule, "http://p", "up")["spec"]
    assert (scaled["minReplicaCount"], scaled["cooldownPeriod"]) == (0, 90)
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == {"scaleDown": {"stabilizationWindowSeconds": 90}}
