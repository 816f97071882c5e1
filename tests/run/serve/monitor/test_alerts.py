"""What is exported for Prometheus and Grafana."""

from __future__ import annotations

import json

from joymigrate.run.serve.monitor import alerts, exports
from joymigrate.run.serve.monitor.derive import QUANTILES, all_series


def test_every_alert_watches_a_series_that_there_is() -> None:
    keys = {one.key for one in all_series() if one.read != "quantile"}
    keys |= {f"{one.key}_{q}" for one in all_series() if one.read == "quantile" for q in QUANTILES}
    rules = alerts.load()
    assert {rule.watch.partition("|")[0] for rule in rules} <= keys
    assert all((rule.above is None) != (rule.below is None) for rule in rules)


def test_the_built_in_alerts_are_exported_for_prometheus() -> None:
    import yaml

    text = exports.prometheus_rules(alerts.load())
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
