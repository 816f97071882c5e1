"""Alerts: when they begin and end, whom they tell and how often, what survives a restart."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor import alerts, exports, notify
from joymigrate.run.serve.monitor.alerts import Alerts, Change, Rule
from joymigrate.run.serve.monitor.history import History
from joymigrate.run.serve.monitor.service import Monitor
from joymigrate.schema import read

KV = Rule("kv", "kv|*", above=95, clear=90, for_seconds=60, text="{who} {value:.0f} %")


def feed(watch: Alerts, *points: tuple[float, float]) -> list[tuple[float, bool]]:
    made = []
    for time, value in points:
        made += [(c.time, c.firing) for c in watch.handle(time, {"kv|npu": value})]
    return made


def test_a_value_must_stay_bad_before_it_is_an_alert() -> None:
    assert feed(Alerts((KV,)), (0, 99), (30, 99), (59, 99)) == []
    assert feed(Alerts((KV,)), (0, 99), (30, 50), (59, 99), (100, 99)) == []
    assert feed(Alerts((KV,)), (0, 99), (60, 99)) == [(60, True)]


def test_between_the_limits_nothing_changes() -> None:
    watch = Alerts((KV,))
    assert feed(watch, (0, 99), (60, 99), (61, 93), (62, 96), (63, 92)) == [(60, True)]
    assert feed(watch, (64, 90)) == [(64, False)]


def test_below_works_the_other_way_round() -> None:
    watch = Alerts((Rule("up", "up|*", below=0.5, clear=0.5),))
    assert [c.firing for c in watch.handle(0, {"up|npu": 0.0})] == [True]
    assert [c.firing for c in watch.handle(1, {"up|npu": 1.0})] == [False]


def test_each_series_has_its_own_alert() -> None:
    watch = Alerts((Rule("kv", "kv|*", above=1),))
    assert {c.who for c in watch.handle(0, {"kv|a": 2.0, "kv|b": 2.0, "kv|c": 0.0})} == {"a", "b"}


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 120)), max_size=60))
def test_beginnings_and_ends_alternate(points: list[tuple[float, float]]) -> None:
    ordered = sorted(points)
    firing = [firing for _, firing in feed(Alerts((KV,)), *ordered)]
    assert firing == [number % 2 == 0 for number in range(len(firing))]


@given(st.lists(st.floats(0, 120), max_size=30), st.lists(st.floats(0, 120), max_size=30))
def test_a_restart_changes_nothing(first: list[float], then: list[float]) -> None:
    kept, saved = Alerts((KV,)), Alerts((KV,))
    one = [(float(i * 10), v) for i, v in enumerate(first)]
    two = [(float((len(first) + i) * 10), v) for i, v in enumerate(then)]
    feed(kept, *one)
    feed(saved, *one)
    again = Alerts((KV,))
    again.restore(json.loads(json.dumps(saved.snapshot())))
    assert feed(again, *two) == feed(kept, *two)


CHANGES = [Change(1.0, "kv", "npu", True, 99.0, "critical", "npu 99 %")]


def test_the_payloads_are_what_the_services_expect() -> None:
    place = notify.Place("x", "https://robot/send?access_token=t", "SEC1")
    url, body = notify.dingtalk(CHANGES, place, 1700000000.0)
    given = parse_qs(urlparse(url).query)
    text = b"1700000000000\nSEC1"
    expected = base64.b64encode(hmac.new(b"SEC1", text, hashlib.sha256).digest()).decode()
    assert given["timestamp"] == ["1700000000000"]
    assert given["sign"] == [expected]
    assert body["msgtype"] == "markdown"
    assert "npu 99 %" in body["markdown"]["text"]

    _, body = notify.feishu(CHANGES, place, 1700000000.0)
    key = b"1700000000\nSEC1"
    assert body["sign"] == base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
    assert body["content"]["text"] == "[critical] kv: npu 99 %"

    _, body = notify.wecom(CHANGES, place, 0.0)
    assert body == {"msgtype": "markdown", "markdown": {"content": "[critical] kv: npu 99 %"}}

    _, body = notify.generic(CHANGES, place, 0.0)
    assert body["schema"] == "joymigrate.alert/1"
    assert body["alerts"][0]["firing"] is True


def monitor(folder: Path, sent: list[Any], repeat: float = 0.0) -> Monitor:
    rules = (Rule("kv", "kv|*", above=95, clear=90, text="{who}"),)
    places = (
        alerts.Place("webhook", "http://a", repeat_seconds=repeat),
        notify.Place("feishu", "http://b"),
    )
    return Monitor(
        [],
        History(folder / "h.sqlite"),
        Alerts(rules),
        places,
        send=lambda url, body: sent.append((url, json.loads(body))),
    )


def look(watched: Monitor, time: float, value: float) -> None:
    changes = watched.watch.handle(time, {"kv|npu": value})
    if changes:
        watched.history.note("alerts", watched.watch.snapshot())
    asyncio.run(watched.tell(time, changes))


def test_every_place_is_told_once(tmp_path: Path) -> None:
    sent: list[Any] = []
    watched = monitor(tmp_path, sent)
    for time in range(10):
        look(watched, float(time), 99.0)
    assert [url for url, _ in sent] == ["http://a", "http://b"]
    look(watched, 11.0, 50.0)
    assert [url for url, _ in sent[2:]] == ["http://a", "http://b"]
    assert sent[-1][1]["content"]["text"].startswith("[resolved]")


def test_a_place_may_be_reminded(tmp_path: Path) -> None:
    sent: list[Any] = []
    watched = monitor(tmp_path, sent, repeat=60.0)
    for time in (0.0, 30.0, 60.0, 90.0, 120.0):
        look(watched, time, 99.0)
    assert [url for url, _ in sent].count("http://a") == 3
    assert [url for url, _ in sent].count("http://b") == 1


def test_after_a_restart_nobody_is_told_again(tmp_path: Path) -> None:
    sent: list[Any] = []
    watched = monitor(tmp_path, sent)
    look(watched, 1.0, 99.0)
    watched.history.close()
    again = monitor(tmp_path, sent)
    look(again, 2.0, 99.0)
    assert len(sent) == 2
    look(again, 3.0, 50.0)
    assert len(sent) == 4


def test_a_place_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    def fails(url: str, body: bytes) -> None:
        raise OSError("no route")

    place = notify.Place("webhook", "http://a")
    assert notify.tell(CHANGES, [place], 0.0, print, fails) == ["webhook: no route"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alerts: [{name: a, watch: kv}]", "either above or below"),
        ("alerts: [{name: a, watch: inflght, above: 1}]", "Did you mean 'inflight'"),
        ("alerts: [{name: a, watch: kv, abov: 1}]", "Did you mean 'above'"),
        ("alerts: [{name: a, watch: kv, above: high}]", "'above' takes a number, got 'high'"),
        (
            "alerts: [{name: a, watch: kv, above: 1, severity: bad}]",
            "'severity' does not know",
        ),
        ("alerts: [{name: a, watch: kv, above: 1, text: '{whom}'}]", "cannot be filled in"),
        ("alert: []", "unknown key 'alert'"),
        ("alerts: []\nnotfy: []", "Did you mean 'notify'"),
    ],
)
def test_a_mistake_in_the_file_is_one_clear_error(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(text)
    with pytest.raises(JoyError, match=says):
        alerts.load(path)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({"kind": "dingtak", "url": "http://x"}, "Did you mean 'dingtalk'"),
        ({"kind": "wecom"}, "needs a url"),
        ({"kind": "webhook", "url": "env:NO_SUCH_VARIABLE"}, "has no NO_SUCH_VARIABLE"),
        ("log", "expected keys with values"),
    ],
)
def test_a_wrong_place_is_one_clear_error(place: Any, says: str) -> None:
    with pytest.raises(JoyError, match=says):
        read(alerts.File, {"alerts": [], "notify": [place]}, "alerts.yaml")


def test_the_built_in_alerts_are_exported_for_prometheus() -> None:
    import yaml

    text = exports.prometheus_rules(alerts.load()[0])
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    by_name = {rule["alert"]: rule for rule in rules}
    assert by_name["BackendDown"]["expr"] == "joymigrate_upstream_up < 0.5"
    assert 'outcome=~"failed|error"' in by_name["FailureRate"]["expr"]
    assert "histogram_quantile(0.99" in by_name["FirstTokenSlow"]["expr"]
    assert "{value" not in text
    assert "device-memory-full" in text.splitlines()[0]


def test_every_panel_for_grafana_asks_for_something() -> None:
    board = json.loads(exports.grafana_dashboard())
    assert len(board["panels"]) == len(exports.PANELS)
    for panel in board["panels"]:
        assert panel["targets"]
        for target in panel["targets"]:
            assert "None" not in target["expr"]
